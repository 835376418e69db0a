"""`python -m release`: builds a release of HEAD into dist/, and checks it. It publishes nothing."""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release import archives, bill, packages, source


def main() -> None:
    """Build a release, or two releases to compare."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--target", type=Path, default=source.ROOT / "dist")
    parser.add_argument(
        "--kernels",
        type=Path,
        help="folder of compiled kernels: those of the same sources are kept",
    )
    parser.add_argument("--twice", action="store_true", help="build it again, and compare")
    given = parser.parse_args()
    shutil.rmtree(given.target, ignore_errors=True)
    sums = build(given.target, given.kernels)
    check(given.target)
    if given.twice:
        with tempfile.TemporaryDirectory() as again:
            found = build(Path(again, "dist"), given.kernels)
        if found != sums:
            sys.exit(f"release: two builds differ:\n{sums}\n{found}")
        print("release: built twice, with the same bytes")
    print(sums, end="")


def build(target: Path, kernels: Path | None) -> str:
    """Build a release into a folder; return its checksums."""
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        exported = source.export(Path(scratch, "source"))
        print(f"release: building {exported.version} of {exported.commit[:12]}", flush=True)
        packages.build(exported, target, kernels)
        archives.build(exported, target)
        bill.write(exported, target)
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(target.iterdir())
    ]
    sums = "".join(lines)
    (target / "SHA256SUMS").write_text(sums)
    return sums


def check(target: Path) -> None:
    """Check the built files with tools of other projects."""
    wheels = sorted(map(str, target.glob("*.whl")))
    (sdist,) = map(str, target.glob("embstore-[0-9]*.tar.gz"))
    (spdx,) = map(str, target.glob("*.spdx.json"))
    tools = Path(sys.executable).parent
    for words in (
        ["twine", "check", "--strict", sdist, *wheels],
        ["check-wheel-contents", *wheels],
        ["pyspdxtools", "--infile", spdx],
    ):
        print(f"release: {words[0]}", flush=True)
        subprocess.run([tools / words[0], *words[1:]], cwd=source.ROOT, check=True)


if __name__ == "__main__":
    main()
