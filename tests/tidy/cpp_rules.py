"""Rules of C++ for what stands between braces, which no single line shows.

A source is read as code: comments and the contents of literals are blanked, and everything stays at its place.
"""

import re

# Where functions are declared that take a struct of arguments.
KERNEL_INTERFACES = ("kernels/attention_args.h", "kernels/ops.h", "kernels/random.h", "kernels/cpu/gemm-inl.h", "kernels/cpu/gemm.h", "kernels/cpu/parts.h",
                     "kernels/cuda/attention_check.h", "kernels/cuda/elementwise.h", "kernels/cuda/parts.h", "kernels/cuda/scratch.h",
                     "worker/engine/linear_layers.h")
KERNEL_CALLERS = ("kernels/", "worker/", "plan/", "emulation/", "tests/")

_BLANKED = re.compile(r'R"(\w*)\((?:.|\n)*?\)\1"|//[^\n]*|/\*(?:.|\n)*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'')
_STRUCT = re.compile(r"^struct (\w+) \{(.*?)^\};", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"^ *(?:(?:virtual|inline|static|HWY_INLINE|HWY_NOINLINE) )*\w+ (\w+)\(([^()]*)\)", re.MULTILINE)
# Behind an opening brace: the name of a member, or nothing at all.
_NAMED = re.compile(r"\s*(?:\.\w+\s*[={]|\})")
# An enumerator of ours: other libraries have other namespaces, and C has no names like it.
_OUR_CASE = re.compile(r"\bcase (?!(?:absl|std|grpc|google|prometheus|testing)::)(?:\w+::)+k[A-Z]\w*\s*:(?!:)")
_SWITCH = re.compile(r"\bswitch \(")
_DEFAULT = re.compile(r"\bdefault\s*:")


def _blanks(text):
    return re.sub(r"[^\n]", " ", text)


def code_of(lines):
    """The text of a source without comments and contents of literals, each of which has become as many blanks."""
    def blank(match):
        text = match.group(0)
        return _blanks(text) if text.startswith("/") else '"' + _blanks(text[1:-1]) + '"'
    return _BLANKED.sub(blank, "\n".join(lines))


def end_of(code, begin):
    """The place behind the bracket that closes the one at `begin`."""
    depth = 0
    for at in range(begin, len(code)):
        depth += (code[at] in "({[") - (code[at] in ")}]")
        if depth == 0:
            return at + 1
    return len(code)


def line_of(code, at):
    return code.count("\n", 0, at) + 1


def braced_arguments(code, begin):
    """The places of the opening braces of arguments that are nothing but braces, of the call whose bracket is at `begin`."""
    end = end_of(code, begin) - 1
    at = begin + 1
    while at < end:
        while at < end and code[at].isspace():
            at += 1
        if at < end and code[at] == "{":
            yield at
        while at < end and code[at] != ",":
            at = end_of(code, at) if code[at] in "({[" else at + 1
        at += 1


def kernel_interface(sources):
    """The structs that kernels take, or that such a struct holds, and the functions that take one."""
    code = "\n".join(code_of(sources[path]) for path in KERNEL_INTERFACES if path in sources)
    bodies = dict(_STRUCT.findall(code))
    declared = _FUNCTION.findall(code)
    structs = {name for name in bodies if any(re.search(rf"\bconst {name}[&*]", parameters) for _, parameters in declared)}
    structs |= {name for name in bodies if any(re.search(rf"^ *{name} \w+", bodies[holder], re.MULTILINE) for holder in structs)}
    return structs, functions_with(structs, code)


def functions_with(structs, code):
    """The functions declared in this code that take one of the structs."""
    taken = re.compile(rf"\b(?:const (?:\w+::)*(?:{'|'.join(structs)})&|(?:{'|'.join(structs)}) \w)")
    return {name for name, parameters in _FUNCTION.findall(code) if taken.search(parameters)}


def check_kernel_arguments(sources, is_cpp):
    """The arguments of kernels are named: two of one type cannot change places unnoticed."""
    structs, functions = kernel_interface(sources)
    if not structs:
        return []
    any_struct = "|".join(sorted(structs))
    # Foo{a}, Foo foo{a}, Foo foo = {a}
    made = re.compile(rf"(?<!struct )(?<!-> )\b(?:\w+::)*\b({any_struct})(?:\s+\w+)?\s*(?:=\s*)?(?=\{{)")
    # Foo Make(int a) { return {a}; }, [](int a) -> Foo { return {a}; }
    returned = re.compile(rf"\b(?P<by_function>{any_struct})\s+(?:\w+::)*\w+(?=\()|-> (?:\w+::)*(?P<by_lambda>{any_struct})\s*(?=\{{)")
    faults = []
    for path, lines in sources.items():
        if not is_cpp(path) or not path.startswith(KERNEL_CALLERS):
            continue
        code = code_of(lines)
        own = functions | functions_with(structs, code)
        called = re.compile(rf"(?<![\w:])(?:(?:kernels|cuda)::)*({'|'.join(sorted(own))})(?=\()")
        braces = {match.end(): match.group(1) for match in made.finditer(code)}
        for match in called.finditer(code):
            braces.update((begin, match.group(1)) for begin in braced_arguments(code, match.end()))
        for match in returned.finditer(code):
            body = match.end() if match["by_lambda"] else body_of_function(code, match.end())
            if body is not None:
                braces.update((body + found.end() - 1, match["by_function"] or match["by_lambda"])
                              for found in re.finditer(r"\breturn \{", code[body:end_of(code, body)]))
        faults += [f"{path}:{line_of(code, begin)}: {name}: name its members: {{.rows = rows, ...}}"
                   for begin, name in sorted(braces.items()) if not _NAMED.match(code, begin + 1)]
    return faults


def body_of_function(code, parameters):
    """The brace behind the parameters that begin at a place; none where a function is only declared or called."""
    match = re.compile(r"(?:\s*\b(?:const|noexcept|override)\b)*\s*(?=\{)").match(code, end_of(code, parameters))
    return match.end() if match else None


def check_switches(sources, is_cpp):
    """A switch over an enum of ours lists its cases, so that the compiler reports one that is missing."""
    faults = []
    for path, lines in sources.items():
        if not is_cpp(path):
            continue
        code = code_of(lines)
        for match in _SWITCH.finditer(code):
            begin = code.find("{", end_of(code, match.end() - 1))
            own = without_inner_switches(code[begin:end_of(code, begin)])
            default = _DEFAULT.search(own)
            if default and _OUR_CASE.search(own):
                faults.append(f"{path}:{line_of(code, begin + default.start())}: name the other cases of this enum instead of default")
    return faults


def without_inner_switches(body):
    """A switch's body in which those of the switches inside of it are blanks."""
    for match in _SWITCH.finditer(body):
        begin = body.find("{", end_of(body, match.end() - 1))
        end = end_of(body, begin)
        body = body[:begin] + _blanks(body[begin:end]) + body[end:]
    return body
