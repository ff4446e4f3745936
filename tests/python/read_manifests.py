"""Reads objects of Kubernetes (YAML) from standard input and prints them as JSON, with what the schemas of each version say of them.

    read_manifests.py VERSION... < FILE        {"objects": [...], "faults": ["Kind/name: version: fault", ...]}

Runs in the environment of environment.sh. Kinds without a schema (custom resources) are named in "unknown".
"""

import json
import sys

import kubernetes_validate
import yaml


def main():
    objects = [each for each in yaml.safe_load_all(sys.stdin) if each]
    faults, unknown = [], set()
    for version in sys.argv[1:]:
        for each in objects:
            name = f"{each.get('kind')}/{each.get('metadata', {}).get('name')}"
            try:
                kubernetes_validate.validate(each, version, strict=True)
            except kubernetes_validate.SchemaNotFoundError:
                unknown.add(name)
            except kubernetes_validate.ValidationError as fault:
                faults.append(f"{name}: {version}: {'.'.join(str(part) for part in fault.path)}: {fault.message}")
    json.dump({"objects": objects, "faults": faults, "unknown": sorted(unknown)}, sys.stdout)


if __name__ == "__main__":
    main()
