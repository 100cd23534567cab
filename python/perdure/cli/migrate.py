"""`perdure migrate`: the schema of a database."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.shared import Json, StoreUrl, named, perform, say, tell_json
from perdure.stores.migrations import Migration
from perdure.stores.schema import apply_migrations, pending_migrations

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("migrate")(migrate)


def migrate(
    store: StoreUrl,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; list what is pending and exit with 1 if anything is.")
    ] = False,
    json: Json = False,
) -> None:
    """Bring a database to this release's schema, or make it.

    All pending migrations are applied in one transaction, each in its order. A database that a newer release wrote, or
    whose migrations were changed, is refused as it is. JSONL folders have no schema.
    """
    with named(store):
        if check:
            _tell(json, "pending", found := perform(pending_migrations(store)), "nothing is pending")
            raise typer.Exit(1 if found else 0)
        _tell(json, "applied", perform(apply_migrations(store, _announce)), "nothing was pending")


def _announce(migration: Migration) -> None:
    say(f"applying {migration.name}")


def _tell(json: bool, what: str, migrations: list[Migration], nothing: str) -> None:
    names = [migration.name for migration in migrations]
    if json:
        tell_json({what: names})
    else:
        typer.echo("\n".join(f"{what} {name}" for name in names) or nothing)
