"""Runs the query on stdin in an engine of build/engines; ClickHouse reads the working directory alone."""

import glob
import importlib
import sys


def by_clickhouse(query: str) -> str:
    """Return rows as CSV."""
    import chdb

    return str(chdb.query(query, "CSV"))


def by_duckdb(query: str) -> str:
    """Return rows as CSV, without the network from which DuckDB would fetch its extensions."""
    import duckdb

    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as engine:
        for name in ("avro", "delta", "iceberg"):
            (place,) = importlib.import_module(f"duckdb_extension_{name}").__path__
            (extension,) = glob.glob(f"{place}/extensions/*/{name}.duckdb_extension")
            engine.execute(f"LOAD '{extension}'")
        rows = engine.execute(query).fetchall()
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


if __name__ == "__main__":
    run = {"ClickHouse": by_clickhouse, "DuckDB": by_duckdb}[sys.argv[1]]
    sys.stdout.write(run(sys.stdin.read()))
