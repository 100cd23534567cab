"""Tasks, queues, scheduler, router and task workers (spec 08; scenarios 73-86)."""
