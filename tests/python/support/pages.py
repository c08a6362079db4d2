"""The documentation's pages, taken apart for tests.

As a program (pages.py FOLDER) writes the first programs in C++ to a folder, for CMake to build: those of the tools as
one, whose argument says which of them runs; those of the README and of the quickstart with their CMakeLists.txt.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: The pages of tools, which have one outline.
TOOLS = ("sharding", "mixed_precision", "adascale", "offload", "outer", "checkpoints", "comm")
#: The same of what there is in C++ alone.
CPP_TOOLS = ("models",)
OUTLINE = ["What it is for", "When not to use it", "First program", "Options", "Cost", "Failure messages"]


def read(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def sections(text: str) -> dict[str, str]:
    """The text under each heading of the second level, in order."""
    parts = re.split(r"^## (.+)\n", re.sub(r"^```.*?^```$", _hide_headings, text, flags=re.M | re.S), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _hide_headings(block: re.Match) -> str:
    return re.sub(r"^## ", "##  ", block.group(), flags=re.M)


def code(text: str, language: str) -> list[str]:
    """The blocks of code in a language."""
    return re.findall(rf"^```{re.escape(language)}\n(.*?)^```$", text, flags=re.M | re.S)


def first_program(name: str, language: str) -> str:
    (program,) = code(sections(read(name))["First program"], language)
    return program


def write(file: Path, text: str) -> None:
    """Leaves a file that has not changed alone, so that it is not built again."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.is_file() or file.read_text() != text:
        file.write_text(text)


def joined_programs() -> str:
    """All tools' programs in one source: LibTorch's headers take the compiler seconds, and the rest a moment."""
    includes, programs, choices = [], [], []
    for name in TOOLS + CPP_TOOLS:
        lines = first_program(name, "cpp").splitlines()
        includes += [line for line in lines if line.startswith("#include")]
        body = "\n".join(line for line in lines if line not in includes)
        assert body.count("int main() {") == 1 and "return 0;" not in body, f"{name}.md: its program has another main"
        programs.append(
            f"namespace {name} {{\n{body.replace('int main() {', 'void run() {')}\n}}  // namespace {name}\n"
        )
        choices.append(f'  if (std::string_view(argv[1]) == "{name}") return {name}::run(), 0;')
    main = ["int main(int, char** argv) {", *choices, "  return 2;", "}"]
    return "\n".join([*dict.fromkeys(includes), "#include <string_view>", *programs, *main, ""])


def main() -> None:
    folder = Path(sys.argv[1])
    write(folder / "tools.cpp", joined_programs())
    for name, text in (("readme", (ROOT / "README.md").read_text()), ("quickstart", read("quickstart"))):
        write(folder / name / "main.cpp", code(text, "cpp")[0])
        write(folder / name / "CMakeLists.txt", code(text, "cmake")[0])


if __name__ == "__main__":
    main()
