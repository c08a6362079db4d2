"""Lists the public names and arguments of FairScale's tools, from a source folder of it, as JSON.

pip download fairscale==0.4.13 --no-deps, unpack, then
python tests/python/docs/list_fairscale_names.py fairscale-0.4.13 > tests/python/docs/fairscale-0.4.13.json

Nothing of FairScale is run or copied: the list has names only.
"""

import ast
import json
import sys
from pathlib import Path

#: The modules of the six tools.
TOOLS = (
    "optim/oss.py",
    "nn/data_parallel/sharded_ddp.py",
    "optim/grad_scaler.py",
    "optim/adascale.py",
    "experimental/nn/offload.py",
    "experimental/nn/data_parallel/gossip/distributed.py",
)


def arguments(function: ast.FunctionDef) -> list[str]:
    every = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    names = [argument.arg for argument in every if argument.arg not in ("self", "ctx")]
    stars = [("*", function.args.vararg), ("**", function.args.kwarg)]
    return names + [star + argument.arg for star, argument in stars if argument is not None]


def methods(node: ast.ClassDef) -> dict[str, list[str]]:
    functions = [member for member in node.body if isinstance(member, ast.FunctionDef)]
    return {f.name: arguments(f) for f in functions if f.name == "__init__" or not f.name.startswith("_")}


def main() -> None:
    package = Path(sys.argv[1]) / "fairscale"
    names = {}
    for file in TOOLS:
        for node in ast.parse((package / file).read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                module = file.removesuffix(".py").replace("/", ".")
                names[f"{module}.{node.name}"] = methods(node)
    json.dump(names, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
