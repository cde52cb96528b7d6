"""One JSON Schema for all that is installed: editors complete and check a config with it."""

from __future__ import annotations

from typing import Any

from ptrl.core.contracts.hooks import describe
from ptrl.core.contracts.reward import RESERVED_REWARD_KEYS
from ptrl.core.errors import PtrlError
from ptrl.core.registry.entries import scan
from ptrl.core.registry.loading import load
from ptrl.core.settings import ComponentTable, RewardTable, RunSettings

PLACES = {
    "environments": "environment",
    "rewards": "reward",
    "samplers": "sampler",
    "filters": "filter",
    "observers": "observer",
}


def build_schema() -> tuple[dict[str, Any], list[str]]:
    """Returns the schema, and a line for each component that could not be imported and is left out."""
    schema = RunSettings.model_json_schema()
    skipped: list[str] = []
    alternatives: dict[str, list[dict[str, Any]]] = {kind: [] for kind in PLACES}
    for entry in scan()[1]:
        if entry.kind not in (*PLACES, "optimizers") or entry.status != "ok":
            continue
        try:
            loaded = load(entry.kind, entry.name)
            loaded.factory.Config.model_json_schema()
        except PtrlError as error:
            skipped.append(str(error))
            continue
        except Exception as error:
            skipped.append(f"{entry.name}: its Config has no JSON schema: {describe(error)}")
            continue
        if entry.kind == "optimizers":
            family = entry.name.partition(".")[0]
            options = loaded.factory.Config.model_json_schema(ref_template=f"#/$defs/{entry.name}/$defs/{{model}}")
            schema["$defs"][entry.name] = options
            table = schema["$defs"]["OptimizerSection"].setdefault("properties", {})
            known = table.setdefault(family, {"anyOf": []})
            known["anyOf"].append({"$ref": f"#/$defs/{entry.name}"})
        elif entry.kind in alternatives:
            schema["$defs"][entry.name] = _component_schema(entry.kind, entry.name, loaded.factory)
            alternatives[entry.kind].append({"$ref": f"#/$defs/{entry.name}"})
    _place(schema, alternatives)
    return schema, skipped


def _component_schema(kind: str, name: str, factory: Any) -> dict[str, Any]:
    options = factory.Config.model_json_schema(ref_template=f"#/$defs/{name}/$defs/{{model}}")
    table = (RewardTable if kind == "rewards" else ComponentTable).model_json_schema()
    reserved = {key: value for key, value in table["properties"].items() if key in RESERVED_REWARD_KEYS}
    options["properties"] = {**reserved, **options.get("properties", {}), "use": {"const": name}}
    options["required"] = sorted({"use", *options.get("required", [])})
    options["additionalProperties"] = False
    options["description"] = (factory.__doc__ or "").strip().split("\n")[0]
    return {**options, "$defs": {**table.get("$defs", {}), **options.get("$defs", {})}}


def _place(schema: dict[str, Any], alternatives: dict[str, list[dict[str, Any]]]) -> None:
    """Puts each kind's alternatives where the sections admit any component."""
    local = {"type": "object", "properties": {"use": {"type": "string", "pattern": "^file:"}}, "required": ["use"]}

    def choice(kind: str) -> dict[str, Any]:
        return {"anyOf": [*alternatives[kind], local]}

    domain = schema["$defs"]["DomainSection"]["properties"]
    domain["environment"] = choice("environments")
    domain["rewards"] = {"type": "object", "additionalProperties": choice("rewards"), "minProperties": 1}
    schema["properties"]["sampler"] = choice("samplers")
    schema["properties"]["filters"] = {"type": "array", "items": choice("filters")}
    schema["properties"]["observers"] = {"type": "array", "items": choice("observers")}
