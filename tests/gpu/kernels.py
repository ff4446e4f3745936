"""How fast each operation is alone: of those that memory bounds the share of the GPU's bandwidth, of products and attention the share of its
rate. docs/kernels.md says what each moves."""

import json

from checks import require

_QUICK = ["--tokens", "32", "--context", "16", "--hidden", "32", "--heads", "2", "--vocabulary", "64", "--repeats", "1"]


def run(part, tree, machine, options):
    lines = []
    with part.check("operations, each alone, at the sizes of GPT-2 124M") as numbers:
        _, out, err = tree.run(part, [tree.program("kernel_rates", "tests"), *(_QUICK if options.quick else [])])
        lines = [json.loads(line) for line in out.splitlines()]
        require(lines, "it printed nothing")
        numbers.update(operations=len(lines), notes=err.split("\n")[:8])
    for name, rate, peak in (("bound by memory", "bytes_per_second", machine.peak_bandwidth()),
                             ("products and attention", "flops_per_second", machine.peak_flops())):
        with part.check(name) as numbers:
            rates = {line["operation"]: line[rate] for line in lines if rate in line}
            require(rates and all(value > 0 for value in rates.values()), "nothing was measured")
            numbers[rate] = rates
            numbers["peak"] = peak
            if peak:
                numbers["share"] = {operation: round(value / peak, 3) for operation, value in rates.items()}
