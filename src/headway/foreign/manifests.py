"""YAML and JSON that describe a job to a cluster: a RayJob, a Pod or any workload with a pod template, a SkyPilot or
dstack task. What they start becomes the text of a shell script, with their variables exported before it.

Field names: the API of Kubernetes 1.33 (core/v1), KubeRay 1.4 (ray.io/v1), Anyscale jobs, SkyPilot 0.10, dstack 0.19.
Placeholders of a template (`{{ .Values.model }}`, `<your-model>`) are variables that nothing sets: what they stand
for is unknown, and everything else is read.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from headway.errors import InputError
from headway.foreign.documents import RefusedError, from_json, from_yaml

LARGEST_FILE = 1 << 20
MOST_DOCUMENTS = 64
MOST_STARTS = 64

IS_MANIFEST = re.compile(r'(?m)^\s{0,4}"?(?:apiVersion|entrypoint|run|commands)"?\s*:')
_TEMPLATED = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}|\{%.*?%\}", re.DOTALL)
_ANGLED = re.compile(r"<([A-Za-z][\w.\-/]*)>")
_NAME = re.compile(r"[A-Za-z_]\w*")
_OPEN = re.compile(r"[^\s\"`]*\$\{\w+\}[^\s\"`]*")
_KUBERNETES = re.compile(r"\$\(([A-Za-z_]\w*)\)")

Node = dict[str, Any]


class Start(Struct, frozen=True):
    """One thing that a manifest starts. `script` is its text in bash; `files` are the scripts that a ConfigMap of the
    same manifest holds, by the names of their files.

    >>> starts("kind: RayJob\\nspec: {entrypoint: python3 train.py}")[0].script
    'python3 train.py'
    """

    name: str
    script: str
    files: dict[str, str]


def read(path: Path, option: str = "") -> str:
    """The text of a manifest. InputError where it cannot be read; `option` is what named it."""
    shown = f"{option} {path}".strip()
    try:
        size = path.stat().st_size
        text = path.read_bytes()[: LARGEST_FILE + 1].decode(errors="replace")
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror})") from None
    if size > LARGEST_FILE:
        raise InputError(f"{shown}: is larger than 1 MiB, which no description of a job is")
    return text


def is_manifest(path: Path) -> bool:
    """Whether a YAML or JSON file describes a job, and not settings of a trainer."""
    if path.suffix.lower() not in (".yaml", ".yml", ".json") or path.name == "config.json":
        return False
    try:
        with path.open("rb") as file:
            return IS_MANIFEST.search(file.read(LARGEST_FILE).decode(errors="replace")) is not None
    except OSError:
        return False


def documents(text: str) -> list[Any]:
    """What the documents of a manifest hold. RefusedError where one is no YAML, InputError where there are too many.

    >>> documents("a: {{ .Values.size }}\\n---\\nb: 2")
    [{'a': '${Values_size}'}, {'b': 2}]
    """
    text = without_placeholders(text)
    if text.lstrip().startswith("{"):
        return [from_json(text)]
    parts = re.split(r"(?m)^---(?:[ \t].*)?$", text)
    if len(parts) > MOST_DOCUMENTS:
        raise InputError(f"has more than {MOST_DOCUMENTS} documents")
    return [from_yaml(part) for part in parts if part.strip()]


def without_placeholders(text: str) -> str:
    """A template's text with a variable for each expression, and without the lines that only steer the template.

    >>> without_placeholders("{{- if .Values.gpu }}\\nimage: {{ .Values.image | quote }}\\n{{- end }}")
    'image: ${Values_image}'
    """
    if "{{" not in text and "{%" not in text:
        return text
    lines = []
    for line in text.split("\n"):
        rest = _TEMPLATED.sub("", line).strip()
        if rest or not _TEMPLATED.search(line):
            lines.append(_TEMPLATED.sub(lambda match: f"${{{_variable(match[1] or 'template')}}}", line))
    return "\n".join(lines)


def _variable(expression: str) -> str:
    """A variable's name for what stands in a placeholder."""
    first = re.split(r"[\s|]", expression.strip().lstrip("."))[0]
    name = re.sub(r"\W+", "_", first).strip("_") or "template"
    return name if _NAME.fullmatch(name) else f"_{name}"


def is_placeholder(raw: object) -> bool:
    """Whether a value stands for one that somebody puts in later.

    >>> [is_placeholder(raw) for raw in ("${Values_memory}", "<memory>", "$MEMORY", "64Gi")]
    [True, True, True, False]
    """
    return isinstance(raw, str) and re.fullmatch(r"\s*(?:\$\{?\(?[\w.]+\)?\}?|<[^<>]*>)\w{0,3}\s*", raw) is not None


# -- what is started -----------------------------------------------------------------------------------------


def starts(text: str) -> list[Start]:
    """What a manifest starts, entrypoints of jobs before containers. RefusedError or InputError where it is none."""
    found = documents(text)
    scripts = {name: content for each in found for name, content in _config_maps(each)}
    jobs = [(name, script) for each in found for name, script in _jobs(each)]
    containers = [each for document in found for each in _containers(document, head(document))]
    return [Start(name, script, scripts) for name, script in (*jobs, *containers)][:MOST_STARTS]


def head(document: Any) -> str:
    """Kind and name of a document."""
    if not isinstance(document, dict):
        return ""
    metadata = document.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    return " ".join(str(part) for part in (document.get("kind"), name) if part)


def _config_maps(document: Any) -> Iterator[tuple[str, str]]:
    if isinstance(document, dict) and document.get("kind") == "ConfigMap" and isinstance(document.get("data"), dict):
        for name, content in document["data"].items():
            if isinstance(content, str):
                yield str(name), content


def _jobs(document: Any) -> Iterator[tuple[str, str]]:
    """The command of a RayJob, of an Anyscale job, of a SkyPilot or dstack task."""
    if not isinstance(document, dict):
        return
    spec = document.get("spec")
    spec = spec if isinstance(spec, dict) else document
    if isinstance(spec.get("entrypoint"), str):
        text = spec.get("runtimeEnvYAML")
        try:
            runtime = from_yaml(text) if isinstance(text, str) else document.get("runtime_env")
        except RefusedError:
            runtime = None
        variables = {**_table(document.get("env_vars")), **_table(_table(runtime).get("env_vars"))}
        folder = _table(runtime).get("working_dir") or document.get("working_dir")
        yield head(document) or "entrypoint", _script(variables, _bash(spec["entrypoint"]), folder)
    elif isinstance(document.get("run"), str):
        variables = {**_sky(document), **_variables(document.get("envs") or document.get("env"))}
        yield str(document.get("name") or "run"), _script(variables, document["run"])
    elif isinstance(document.get("commands"), list):
        lines = [line for line in document["commands"] if isinstance(line, str)]
        variables = {**_dstack(document), **_variables(document.get("env"))}
        yield str(document.get("name") or "commands"), _script(variables, "\n".join(lines))


def _sky(document: Node) -> Node:
    """What SkyPilot tells a task of its nodes and devices: `accelerators: H100:8` are eight on each."""
    found: Node = {"SKYPILOT_NUM_NODES": document.get("num_nodes", 1), "SKYPILOT_NODE_RANK": 0}
    asked = _table(document.get("resources")).get("accelerators")
    count = next(iter(asked.values()), 1) if isinstance(asked, dict) else _count(asked)
    return {**found, "SKYPILOT_NUM_GPUS_PER_NODE": count} if isinstance(count, int) else found


def _dstack(document: Node) -> Node:
    """The same of dstack: `gpu: H100:8`, or a table with their count."""
    nodes, asked = document.get("nodes", 1), _table(document.get("resources")).get("gpu")
    count = asked.get("count", 1) if isinstance(asked, dict) else _count(asked)
    if not isinstance(nodes, int) or not isinstance(count, int):
        return {}
    return {
        "DSTACK_NODES_NUM": nodes, "DSTACK_GPUS_PER_NODE": count, "DSTACK_GPUS_NUM": nodes * count,
        "DSTACK_NODE_RANK": 0,
    }  # fmt: skip


def _count(asked: object) -> int | None:
    """The number in `H100:8` or `80GB:8`, 1 where it has none."""
    if isinstance(asked, int):
        return asked
    last = str(asked).rpartition(":")[2] if isinstance(asked, str) else ""
    return int(last) if last.isdigit() else 1 if isinstance(asked, str) and ":" not in asked else None


def _containers(node: Any, name: str) -> Iterator[tuple[str, str]]:
    """The commands of all containers below a node, with the variables of their own."""
    if isinstance(node, list):
        for each in node:
            yield from _containers(each, head(each) or name)
    elif isinstance(node, dict):
        containers = node.get("containers")
        for each in containers if isinstance(containers, list) else ():
            words = [*_words(_table(each).get("command")), *_words(_table(each).get("args"))]
            if words:
                variables = _variables(_table(each).get("env"))
                script = words[0] if len(words) == 1 and "\n" in words[0] else _line(words, variables)
                yield f"{name}, container {_table(each).get('name', '')}", _script(variables, _bash(script))
        for key, value in node.items():
            if key not in ("status", "metadata", "containers"):
                yield from _containers(value, name)


def _line(words: list[str], variables: Node) -> str:
    """A command's list of words for bash: `$(NAME)` is what Kubernetes puts there, and in a word without blanks a
    placeholder stays a variable."""
    put = [_KUBERNETES.sub(lambda match: str(variables.get(match[1], match[0])), word) for word in words]
    return " ".join(
        f'"{word}"' if re.fullmatch(r"[^\s\"`]*\$\{\w+\}[^\s\"`]*", word) else shlex.quote(word) for word in put
    )


def _bash(text: str) -> str:
    """`<your-model>` in a command is a placeholder, where bash would read a file."""
    return _ANGLED.sub(lambda match: f"${{{_variable(match[1])}}}", text)


def _script(variables: Node, text: str, folder: object = None) -> str:
    """A script that sets the variables, goes to its folder and then runs the text."""
    lines = [f"export {name}={_value(value)}" for name, value in variables.items() if _NAME.fullmatch(str(name))]
    if isinstance(folder, str) and folder and "://" not in folder:
        lines.append(f"cd {shlex.quote(folder)}")
    return "\n".join([*lines, text])


def _value(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f'"{text}"' if is_placeholder(text) else shlex.quote(text)


def _variables(listed: Any) -> Node:
    """Variables with their values, of a table, of `{name, value}` or of `NAME=value`; a secret has none."""
    if isinstance(listed, dict):
        return {str(name): value for name, value in listed.items() if isinstance(value, str | int | float)}
    found: Node = {}
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, str) and "=" in each:
            name, _, value = each.partition("=")
            found[name] = value
        elif isinstance(each, dict) and isinstance(each.get("value"), str | int | float):
            found[str(each.get("name"))] = each["value"]
    return found


def _words(listed: Any) -> list[str]:
    if isinstance(listed, str):
        return [listed]
    return [str(word) for word in listed if isinstance(word, str | int | float)] if isinstance(listed, list) else []


def _table(node: Any) -> Node:
    return node if isinstance(node, dict) else {}
