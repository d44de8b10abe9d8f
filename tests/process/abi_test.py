"""The C interface is what client/abi.txt says: the symbols of libcentroid.so, the layout of each struct, the value of each enumerator.

abi_test.py LIBRARY [--write]     needs cc and nm

A program built for an older library also runs with a newer one. So symbols, fields and enumerators are only added, after the existing ones.
--write updates the list after such a change.
"""

import ctypes
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT

LIST = ROOT / "client" / "abi.txt"
HEADER = ROOT / "client" / "centroid.h"
HEAD = "# The C interface of libcentroid.so.1, on 64-bit Linux. Made by tests/process/abi_test.py LIBRARY --write.\n"
SKIPPED = 77


def declared():
    """Structs of the header with their fields, and its enumerators."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    structs = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.DOTALL):
        fields = []
        for line in filter(str.strip, body.split(";")):
            pointer = re.search(r"\(\*(\w+)\)", line)
            fields += [pointer[1]] if pointer else [re.search(r"(\w+)\s*$", part)[1] for part in line.split(",")]
        structs[name] = fields
    values = [word for body in re.findall(r"enum \w+ \{(.*?)\}", text, re.DOTALL) for word in re.findall(r"CENTROID_\w+", body)]
    return structs, values


def layout(folder):
    """Lines of the list that a C compiler knows."""
    structs, values = declared()
    body = []
    for name, fields in structs.items():
        body.append(f'printf("struct {name} %zu\\n", sizeof({name}));')
        body += [f'printf("field {name} {field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));' for field in fields]
    body += [f'printf("value {value} %d\\n", {value});' for value in values]
    source = folder / "layout.c"
    source.write_text(f'#include "{HEADER}"\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n' + "\n".join(body) + "\nreturn 0;\n}\n")
    subprocess.run(["cc", "-o", folder / "layout", source], check=True)
    return subprocess.run([folder / "layout"], capture_output=True, text=True, check=True).stdout.splitlines()


def symbols(library):
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return sorted(f"symbol {line.split()[-1].partition('@')[0]}" for line in listed.splitlines())


def check_python(lines):
    """The structs of client/python/centroid/_abi.py are those of C."""
    sys.path.insert(0, str(ROOT / "client" / "python"))  # lint-ok: the package that is tested
    from centroid import _abi

    names = {"_Server": "server", "_Training": "training", "_Tensor": "tensor", "_Pulled": "pulled_tensor", "_Share": "share", "_Step": "step"}
    names |= {"_GroupOptions": "group_options", "_Call": "call", "_Round": "round", "_ShardedState": "sharded_state"}
    for ours, theirs in names.items():
        struct, name = getattr(_abi, ours), f"centroid_{theirs}"
        found = [f"struct {name} {ctypes.sizeof(struct)}"]
        found += [f"field {name} {field} {getattr(struct, field).offset} {getattr(struct, field).size}" for field, _ in struct._fields_]
        yield from (f"_abi.py: {line}" for line in found if line not in lines)


def main(library, *options):
    with tempfile.TemporaryDirectory(prefix="centroid-abi-") as folder:
        found = symbols(library) + layout(pathlib.Path(folder))
    if "--write" in options:
        LIST.write_text(HEAD + "\n".join(found) + "\n")
        return 0
    known = LIST.read_text().splitlines()[1:]
    faults = [f"missing or changed: {line}" for line in known if line not in found] + [f"not in the list: {line}" for line in found if line not in known]
    faults += check_python(found)
    print("\n".join(faults) or f"{len(known)} lines of {LIST.name} agree")
    return 1 if faults else 0


if __name__ == "__main__":
    if missing := [name for name in ("cc", "nm") if not shutil.which(name)]:
        print(f"skipped: no {missing[0]} here")
        sys.exit(SKIPPED)
    sys.exit(main(*sys.argv[1:]))
