"""``agentq db`` on an empty database."""

from collections.abc import Callable

from agentq.storage import migrate
from tests.cli.program import Program


def test_a_database_is_upgraded_once_and_says_where_it_is(
    program: Program, new_database_url: Callable[[], str]
) -> None:
    program.settings = {"AGENTQ_DATABASE_URL": new_database_url()}
    head = migrate.head()
    assert program("db", "current").out == "none\n"
    assert program("db", "current", "--json").json == {"current": None, "head": head}
    assert program("db", "check").code == 2
    assert f"at {head}, it was at nothing" in program("db", "upgrade").out
    assert program("db", "upgrade").out == f"the schema is at {head}\n"
    assert program("db", "current").out == f"{head}\n"
    assert program("db", "check").code == 0


def test_the_sql_is_printed_without_a_database(program: Program) -> None:
    everything = program("db", "sql", AGENTQ_DATABASE_URL="postgresql://nowhere:1/x").out
    assert "CREATE TABLE agentq.runs" in everything
    assert everything.rstrip().endswith("COMMIT;")
    assert "CREATE TABLE" not in program("db", "sql", f"{migrate.head()}:{migrate.head()}").out
