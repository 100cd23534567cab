"""The adapters of foreign queues against the real thing: a Celery worker process on its file-system transport, and a
Procrastinate worker process on PostgreSQL."""
