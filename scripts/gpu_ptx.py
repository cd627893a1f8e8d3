#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpu_ptx.py [BUILD] - what the compiler has made of the kernels for cards (out/release/gpu/*.ptx), without any card.

Every kernel of kernels.inc is there, and no other; every operation is in the list below: floats are computed by the forms
that round once to nearest (.rn), nothing is contracted, flushed or approximated, no array lies in local memory, and code
for cards of 7.5 has no instruction of newer ones.  A contraction that the source asks for looks like gpu_fma(): so the
sources have no pragma for it, no builtin function, assembler's text or intrinsic outside of gpu.h, no double, and no
header but ours and two of the compiler's.
Exit status 1 if anything differs; 77 if the build has no PTX (it found no clang)."""
import pathlib, re, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNELS = ROOT / "src/device/gpu/kernels"

# Of floats: a sum or product without .rn might be contracted by the assembler.
FLOATS = r"""(add|sub|mul|fma|div|rcp|sqrt)\.rn\.f32 | (abs|neg|mov|selp)\.f32 | (min|max)(\.NaN)?\.f32
    | setp\.(eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|nan|num)\.f32
    | cvt\.(rni\.f32\.f32|rn\.f32\.[su](8|16|32)|rz[i]\.[su](16|32)\.f32|f32\.f16|rn\.f16\.f32)"""
WORDS = r"""(add|sub|min|max|neg|div|rem|shr|mul\.lo|mul\.wide|mul\.hi|mad\.lo|mad\.wide|abs|bfe)\.[su](16|32|64)
    | (and|or|xor|not|shl|mov|selp|brev)\.(b16|b32|b64|pred) | mov\.[us](16|32|64) | selp\.[us](16|32|64)
    | setp\.(eq|ne|lt|le|gt|ge)\.[sub](16|32|64) | cvt\.[su](16|32|64)\.[su](8|16|32|64) | cvta(\.to)?\.(global|shared)\.u64
    | popc\.b32 | clz\.b32 | prmt\.b32 | dp4a\.[su]32\.s32 | bra(\.uni)? | ret"""
MEMORY = r"""ld\.param(\.v[24])?\.[suf](8|16|32|64) | ld(\.global|\.shared)?(\.v[24])?\.[suf](8|16|32|64)
    | st(\.global|\.shared)?(\.v[24])?\.[suf](8|16|32|64) | ld\.global\.nc(\.L1::no_allocate)?(\.v4)?\.[suf](8|16|32|64)
    | cp\.async\.(cg\.shared\.global|commit_group|wait_group) | atom\.add\.s32"""
TOGETHER = r"""bar\.sync | bar\.warp\.sync | shfl\.sync\.(idx|bfly)\.b32 | vote\.sync\.ballot\.b32
    | ldmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 | mma\.sync\.aligned\.m16n8k32\.row\.col\.s32\.[su]8\.s8\.s32"""
NEWER = re.compile(r"cp\.async|ldmatrix|mma\.")  # from 8.0 on
KNOWN = re.compile("|".join((FLOATS, WORDS, MEMORY, TOGETHER)), re.X)
OPERATION = re.compile(r"^\s*(?:\{ )?(?:@!?%p\d+\s+)?([a-z][a-z0-9_]*(?:\.[A-Za-z0-9_:]+)*)(?=[\s;])")


def kernels():
    """Names by module."""
    text = re.sub(r"/\*.*?\*/", "", (KERNELS / "kernels.inc").read_text(), flags=re.S).replace("\\\n", "")
    found, macros = {}, {}
    for name, argument, body in re.findall(r"#define (\w+)\((\w+)\)(.*)", text):
        macros[name] = (argument, body)
    lines = []
    for line in text.splitlines():
        call = re.fullmatch(r"(\w+)\((\w+)\)", line.strip())
        if call and call[1] in macros:
            argument, body = macros[call[1]]
            lines.append(re.sub(rf"##{argument}\b|\b{argument}\b", call[2], body).replace("##", ""))
        elif not line.startswith("#"):
            lines.append(line)
    for args in re.findall(r"GPU_KERNEL\(([^()]*)\)", "\n".join(lines)):
        words = [w.strip() for w in args.split(",")]
        found.setdefault(words[-1], set()).add(words[0])
    return found


# What no kernel's source has; gpu.h alone has the first.
OWN = re.compile(r"__builtin_|__nvvm_|\basm\b|__asm")
NEVER = re.compile(r"\bdouble\b|pragma\s+(clang|STDC)|_Pragma\(\"(clang fp|STDC)|#\s*include\s+<(?!card_books\.inc|stdint\.h|stdbool\.h)[^>]*>")


def sources():
    for path in sorted(p for p in KERNELS.iterdir() if p.suffix in (".cu", ".inc", ".h")):
        text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), path.read_text(), flags=re.S)
        for i, line in enumerate(text.splitlines(), 1):
            found = NEVER.search(line) or (path.name != "gpu.h" and OWN.search(line))
            if found:
                yield f"{path.name}:{i}: {found[0].strip()} is not for kernels"


def look(path, wanted):
    text = path.read_text()
    have = set(re.findall(r"^\.visible \.entry (\w+)", text, re.M))
    yield from (f"{path.name}: kernel {n} of kernels.inc is missing" for n in sorted(wanted - have))
    yield from (f"{path.name}: kernel {n} is not in kernels.inc" for n in sorted(have - wanted))
    seen = set()
    for i, line in enumerate(text.splitlines(), 1):
        line = line.split("//")[0]
        if re.search(r"^\s*\.local\b", line):
            yield f"{path.name}:{i}: an array in local memory"
        if line.lstrip().startswith((".", "$", "(", ")", "}")) or not line.strip():
            continue
        found = OPERATION.match(line)
        if found and ".75." in path.name and NEWER.match(found[1]):
            yield f"{path.name}:{i}: operation {found[1]} is of newer cards"
        if found and found[1] not in seen and not KNOWN.fullmatch(found[1]):
            seen.add(found[1])
            yield f"{path.name}:{i}: operation {found[1]} is not in the list"


def main(build):
    folder = pathlib.Path(build) / "gpu"
    files = sorted(folder.glob("*.ptx"))
    modules = dict(re.findall(r"^GPU_MODULE\((\w+), (\d+)\)", (KERNELS / "modules.inc").read_text(), re.M))
    wanted = kernels()
    if not files:
        print("ptx: this build has none: is there a clang?")
        return 77
    bad = [f"kernels.inc: module {m} is not in modules.inc" for m in wanted if m not in modules]
    files = [f for f in files if f.name.split(".")[0] in modules]  # others are of earlier builds
    have = {f.name for f in files}
    for module, least in modules.items():
        bad += [f"{module}.{sm}.ptx is missing" for sm in (75, 80) if sm >= int(least) and f"{module}.{sm}.ptx" not in have]
    bad += sources()
    for f in files:
        bad += look(f, wanted.get(f.name.split(".")[0], set()))
    print("\n".join(bad) if bad else f"ptx: ok, {len(files)} files, {sum(map(len, wanted.values()))} kernels")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ROOT / "out/release"))
