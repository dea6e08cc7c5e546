"""The files of `cluster/`, as far as they can be checked with no cloud: by Ray's own schema, reader and scheduler, and by our settings."""

import copy
import logging
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import jsonschema
import pytest
import yaml
from kuberay_fields import faults
from pydantic import BaseModel
from ray._common.utils import import_attr
from ray._private import ray_constants
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig as Machines
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeDeploySchema

from raydense.cli import app
from raydense.cli.flags import read
from raydense.errors import InputError
from raydense.recipes.recipe import Recipe
from raydense.recipes.stage import VERBS
from raydense.serving.settings import ServeSettings
from raydense.storage import Draft

ROOT = Path(__file__).parents[2]
LAUNCHER = ["aws.yaml", "gcp.yaml"]
JOBS = ["rayjob-encode.yaml", "rayjob-generate.yaml", "rayjob-joint.yaml"]
GROWING = ["raycluster.yaml", *JOBS]
SERVICE = "rayservice-search.yaml"
KUBERAY = ["data.yaml", *GROWING, SERVICE]
WITH_COMMENTS = [ROOT / "cluster" / "README.md", *(ROOT / "cluster").glob("*.yaml"), *(ROOT / "cluster" / "kuberay").glob("*.yaml")]


def _launcher(name):
    return yaml.safe_load((ROOT / "cluster" / name).read_text())


def _kubernetes(name):
    return yaml.safe_load((ROOT / "cluster" / "kuberay" / name).read_text())


def _cluster_of(name):
    spec = _kubernetes(name)["spec"]
    return spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec


def _started(config, shape, count, **unavailable):
    """What Ray's scheduler would start for so many demands of a shape, where nothing runs yet beyond min_workers."""
    types = Machines(copy.deepcopy(config), skip_content_hash=True)
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=types.get_node_type_configs(),
        max_num_nodes=types.get_max_num_nodes(),
        resource_requests=ResourceRequestUtil.group_by_count([ResourceRequestUtil.make(shape) for _ in range(count)]),
        recoverable_resource_availabilities=unavailable,
    )
    reply = ResourceDemandScheduler(None).schedule(request)
    assert not reply.infeasible_resource_requests
    return {launch.instance_type: launch.count for launch in reply.to_launch}


@pytest.mark.parametrize("name", LAUNCHER)
def test_ray_takes_the_launcher_files(name):
    validate_config(prepare_config(_launcher(name)))
    with pytest.raises(Exception, match="idle_timeout_minuts"):
        validate_config(prepare_config(_launcher(name) | {"idle_timeout_minuts": 5}))


@pytest.mark.parametrize("name", LAUNCHER)
def test_a_launched_cluster_begins_with_its_head_alone_and_grows_by_what_is_asked_for(name):
    config = _launcher(name)
    assert _started(config, {"GPU": 1}, 20) == {"v100-spot": 16, "v100-on-demand": 4}
    assert _started(config, {"GPU": 1}, 3) == {"v100-spot": 3}
    assert _started(config, {"CPU": 1}, 20) == {"cpu-spot": 2}
    assert sum(kind.get("min_workers", 0) for kind in config["available_node_types"].values()) == 0


def test_search_pools_make_a_cluster_on_google_cloud_grow():
    """On AWS Ray fills in the memory of a type by itself, for Google Cloud it does not; 0.7 of a machine is not its store of objects."""
    config = _launcher("gcp.yaml")
    gib = 2**30
    assert _started(config, {"memory": 12 * gib, "CPU": 0.001}, 9) == {"cpu-spot": 3}
    assert _started(config, {"memory": 15 * gib, "GPU": 1}, 2) == {"v100-spot": 2}
    for kind in config["available_node_types"].values():
        if "memory" in kind["resources"]:
            machine = 3.75 * gib * int(re.fullmatch(r"n1-standard-(\d+)", kind["node_config"]["machineType"])[1])
            assert 0.6 * machine < kind["resources"]["memory"] < 0.66 * machine
    assert [name for name, kind in config["available_node_types"].items() if "memory" not in kind["resources"]] == ["head"]


@pytest.mark.parametrize("name", LAUNCHER)
def test_a_training_gets_the_machines_of_the_comment(name):
    config = _launcher(name)
    assert _started(config, {"GPU": 1, "CPU": 1}, 8) == {"v100-spot": 8}
    config["available_node_types"]["v100x4-spot"] |= {"max_workers": 2}
    assert _started(config, {"GPU": 1, "CPU": 1}, 8) == {"v100x4-spot": 2}


@pytest.mark.parametrize("name", LAUNCHER)
def test_a_launched_cluster_is_closed_and_its_head_does_no_work(name):
    config = _launcher(name)
    head = config["head_start_ray_commands"][-1]
    assert "--dashboard-host=127.0.0.1" in head
    assert "--num-cpus=0 --num-gpus=0" in head
    assert config["available_node_types"][config["head_node_type"]]["resources"] == {"CPU": 0}
    assert "-e RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    if name == "aws.yaml":
        groups = [kind["node_config"]["SecurityGroupIds"] for kind in config["available_node_types"].values()]
        assert all(group == ["sg-YOUR-GROUP"] for group in groups), "a type without one opens port 22 to the world"


COMMENTED = r"(?:IamInstanceProfile|serviceAccounts|serviceAccountName|imagePullSecrets|envFrom|env): |- (?:aws ecr|gcloud auth) |- \{name: (?:cache|RAYDENSE_CACHE),"
CREDENTIALS = re.compile(rf"^( *)# ({COMMENTED})", re.MULTILINE)


def _with_credentials(path):
    """A file with its commented lines on credentials, registries and the cache of buckets put in, and how many these are."""
    text, count = CREDENTIALS.subn(r"\1\2", (ROOT / "cluster" / path).read_text())
    return yaml.safe_load(re.sub("YOUR-[A-Z-]+", "mine", text)), count


@pytest.mark.parametrize("name", LAUNCHER)
def test_credentials_of_machines_fit_where_they_are_commented(name):
    config, count = _with_credentials(name)
    assert count
    validate_config(prepare_config(config))
    assert "docker" in config["initialization_commands"][0], "the machine logs in to the image's registry before it pulls"
    key = "IamInstanceProfile" if name == "aws.yaml" else "serviceAccounts"
    workers = {kind: of["node_config"] for kind, of in config["available_node_types"].items() if kind != "head"}
    assert [kind for kind, of in workers.items() if key not in of] == []


@pytest.mark.parametrize("name", [*GROWING, SERVICE])
def test_credentials_of_pods_fit_where_they_are_commented(name):
    whole, count = _with_credentials(f"kuberay/{name}")
    assert count
    assert faults(whole) == []
    spec = whole["spec"].get("rayClusterSpec") or whole["spec"].get("rayClusterConfig") or whole["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert {"serviceAccountName", "imagePullSecrets"} <= pod.keys()
        assert all("envFrom" in container for container in pod["containers"])
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts == {"data": "/data", "cache": "/tmp"}
        assert {volume["name"] for volume in pod["volumes"]} == mounts.keys()
        caches = [of["value"] for of in pod["containers"][0]["env"] if of["name"] == "RAYDENSE_CACHE"]
        assert caches == [f"{mounts['cache']}/raydense"]


@pytest.mark.parametrize("name", KUBERAY)
def test_kubernetes_files_have_no_field_that_is_not_there(name):
    assert faults(_kubernetes(name)) == []


@pytest.mark.skipif("KUBERAY_CRDS" not in os.environ, reason="KUBERAY_CRDS names no folder of KubeRay's helm-chart/kuberay-operator/crds")
@pytest.mark.parametrize("name", KUBERAY[1:])
def test_kuberays_own_schemas_take_the_files(name):
    whole = _kubernetes(name)
    file = Path(os.environ["KUBERAY_CRDS"]) / f"ray.io_{whole['kind'].lower()}s.yaml"
    versions = yaml.safe_load(file.read_text())["spec"]["versions"]
    schema = next(of["schema"]["openAPIV3Schema"] for of in versions if of["name"] == "v1")
    check = jsonschema.Draft7Validator(_closed(schema)).iter_errors
    assert [error.message for error in check(whole)] == []
    whole["spec"]["misspelt"] = 1
    assert any("'misspelt' was unexpected" in error.message for error in check(whole))


def _closed(schema):
    """A schema of Kubernetes as plain JSON schema, without fields that it does not name."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if closed.pop("x-kubernetes-int-or-string", False):
        return {"type": ["integer", "string"]}
    if closed.get("type") == "object" and isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def test_a_misspelt_or_misplaced_field_is_found_at_any_depth():
    whole = _kubernetes("rayjob-encode.yaml")
    whole["spec"]["backofLimit"] = 1
    whole["spec"]["rayClusterSpec"]["autoscalerOptions"]["version"] = "v3"
    container = whole["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    container["resource"] = container.pop("resources")
    found = faults(whole)
    spots = [
        "$.spec",
        "$.spec.rayClusterSpec.autoscalerOptions.version",
        "$.spec.rayClusterSpec.workerGroupSpecs[0].template.spec.containers[0]",
    ]
    for spot, word in zip(spots, ("'backofLimit' was unexpected", "'v3' is not one of", "'resource' was unexpected"), strict=True):
        assert any(line.startswith(f"{spot}: ") and word in line for line in found), found


@pytest.mark.parametrize("name", GROWING)
def test_rays_autoscaler_reads_the_pods_that_the_file_describes(name):
    config = _autoscaled(name)
    kinds = config["available_node_types"]
    assert kinds["headgroup"]["resources"] == {"CPU": 0, "GPU": 0, "memory": 10 * 2**30}
    for group in ("v100-spot", "v100-on-demand"):
        assert kinds[group]["resources"] == {"CPU": 7, "GPU": 1, "memory": 15 * 2**30}
    assert kinds["v100-spot"]["priority"] > kinds["v100-on-demand"].get("priority", 0)


def _autoscaled(name):
    logging.getLogger("ray.autoscaler").setLevel(logging.ERROR)
    return _derive_autoscaling_config_from_ray_cr({"metadata": {"name": "raydense", "namespace": "default"}, "spec": _cluster_of(name)})


@pytest.mark.parametrize("name", [*GROWING, SERVICE])
def test_pools_leave_room_in_a_pod(name):
    """KubeRay gives out the whole limit of a pod where nothing is said; Ray's store of objects and the processes beside tasks come on top."""
    spec = _cluster_of(name)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        limit = int(re.fullmatch(r"(\d+)Gi", container["resources"]["limits"]["memory"])[1]) * 2**30
        assert 0.6 * limit < int(group["rayStartParams"]["memory"]) < 0.66 * limit


@pytest.mark.parametrize("name", [*GROWING, SERVICE])
def test_a_pod_that_is_taken_away_ends_in_order(name):
    """Ray lets the work of a node go on for a while, and signs it off after that: before Kubernetes kills what is left of the pod."""
    spec = _cluster_of(name)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        given = {of["name"]: of["value"] for of in container.get("env", [])}
        drains = float(given.get("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", ray_constants.RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S))
        spot = "cloud.google.com/gke-spot" in pod.get("nodeSelector", {})
        assert drains <= (15 if spot else pod.get("terminationGracePeriodSeconds", 30)) - 5, group.get("groupName", "head")


@pytest.mark.parametrize("name", [*GROWING, SERVICE])
def test_pods_meet_the_restricted_level_of_pod_security(name):
    """Of Kubernetes' Pod Security Standards; KubeRay's init containers take what the container of Ray has."""
    spec = _kubernetes(name)["spec"]
    cluster = _cluster_of(name)
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    pods += [spec["submitterPodTemplate"]["spec"]] if name in JOBS else []
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*(of for pod in pods for of in pod["containers"]), cluster["autoscalerOptions"]):
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_work_without_gpus_starts_no_gpu_pods():
    assert _started(_autoscaled("raycluster.yaml"), {"CPU": 1}, 40) == {"cpu-spot": 3}
    assert _started(_autoscaled("raycluster.yaml"), {"memory": 12 * 2**30, "CPU": 0.001}, 4) == {"cpu-spot": 2}


@pytest.mark.parametrize("name", ["raycluster.yaml", "rayjob-encode.yaml", "rayjob-generate.yaml"])
def test_pods_on_spot_machines_come_first_and_others_where_there_are_none(name):
    assert _started(_autoscaled(name), {"GPU": 1}, 20) == {"v100-spot": 16, "v100-on-demand": 4}
    assert _started(_autoscaled(name), {"GPU": 1}, 3, **{"v100-spot": 0.0}) == {"v100-on-demand": 3}


@pytest.mark.parametrize("name", ["raycluster.yaml", "rayjob-encode.yaml", "rayjob-generate.yaml", *LAUNCHER])
def test_a_pool_asks_for_all_that_the_cluster_may_have(name):
    config = _launcher(name) if name in LAUNCHER else _autoscaled(name)
    text = (ROOT / "cluster" / (name if name in LAUNCHER else f"kuberay/{name}")).read_text()
    most = sum(kind["max_workers"] * int(kind["resources"].get("GPU", 0)) for kind in config["available_node_types"].values())
    assert re.findall(r"--concurrency (\S+)", text.replace("(--concurrency)", "")) == [f"1,{most}"]


def test_the_workers_of_a_training_are_there_when_it_begins():
    words = shlex.split(_kubernetes("rayjob-joint.yaml")["spec"]["entrypoint"])
    spot = _cluster_of("rayjob-joint.yaml")["workerGroupSpecs"][0]
    assert spot["replicas"] == spot["minReplicas"] == int(words[words.index("--workers") + 1])


@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_is_tried_again_can_go_on(name):
    job = _kubernetes(name)["spec"]
    assert job["backoffLimit"] > 0
    assert job["shutdownAfterJobFinishes"]  # else KubeRay refuses `suspend`
    assert set(yaml.safe_load(job.get("runtimeEnvYAML", "{}"))) <= {"env_vars"}
    words = shlex.split(job["entrypoint"])
    assert words[words.index("--output") + 1].startswith("/data/")


@pytest.mark.parametrize("name", JOBS)
def test_entry_points_are_commands_that_exist(name):
    _check_command(_kubernetes(name)["spec"]["entrypoint"])


def test_the_training_is_the_stage_of_the_recipe():
    _, verb, *flags = shlex.split(_kubernetes("rayjob-joint.yaml")["spec"]["entrypoint"])
    given = app.commands[verb].make_context(verb, flags).params
    job = read(VERBS[verb].settings, None, {key: value for key, value in given.items() if key not in ("config", "as_json", "address")})
    recipe = Recipe.read(ROOT / "jobs" / "recipes" / "rocketqav2-msmarco.yaml", "/data/msmarco")
    (stage,) = [stage.settings for stage in recipe.stages if stage.name == "joint"]
    assert job.shaping() == stage.shaping()
    assert {key: job.value_of(key) for key in ("output", *job.inputs())} == {
        key: stage.value_of(key) for key in ("output", *stage.inputs())
    }


@pytest.mark.parametrize("file", WITH_COMMENTS, ids=lambda file: file.name)
def test_the_jobs_of_the_comments_exist(file):
    text = re.sub(r"\\\n#?\s*", "", file.read_text())
    commands = re.findall(r"-- python -m (raydense [^\n`']*)", text)
    assert bool(commands) == ("ray job submit" in text)
    for command in commands:
        _check_command(command)


def _check_command(command):
    """The verb is there, and its flags make settings (or a recipe) as the command line would."""
    program, verb, *flags = shlex.split(command)
    assert program == "raydense"
    given = app.commands[verb].make_context(verb, flags).params
    if verb == "run":
        assert Recipe.read(ROOT / given["recipe"], given["output"], given["changes"]).stages
    else:
        kind = VERBS[verb].settings.chosen(given)
        kind.read({key: value for key, value in given.items() if key in kind.model_fields and value not in (None, ())})


def test_a_flag_that_went_away_is_found():
    with pytest.raises(click.NoSuchOption):
        _check_command("raydense encode --modell m --corpus c --output o")
    with pytest.raises(InputError, match="MIN,MAX"):
        _check_command("raydense encode --model m --corpus c --output o --concurrency 8,1")


def _served():
    return yaml.safe_load(_kubernetes(SERVICE)["spec"]["serveConfigV2"])


def test_serve_takes_the_configuration_of_the_service(tmp_path):
    """By Ray's own schema, which lets unknown keys pass: so every key is looked for in it. The app is made from its args, as Serve makes it, of inputs that are here."""
    config = _served()
    read = ServeDeploySchema.model_validate(config)
    _check_keys(config, read)
    (app,) = read.applications
    kinds = {key: kind for key, kind in ServeSettings.inputs().items() if key in app.args}
    made_here = {key: str(Draft.open(tmp_path / key, kind, {}).finish(0).path) for key, kind in kinds.items()}
    made = import_attr(app.import_path)(app.args | made_here)
    assert {of.name for of in app.deployments} == {made._bound_deployment.name}
    with pytest.raises(InputError, match=r"args\.shard_replica: unknown key; did you mean 'shard_replicas'"):
        import_attr(app.import_path)(app.args | {"shard_replica": 2})
    AutoscalingConfig.model_validate(app.deployments[0].autoscaling_config)
    assert app.deployments[0].autoscaling_config.keys() <= AutoscalingConfig.model_fields.keys()
    config["applications"][0]["deployments"][0]["autoscaling_confg"] = {}
    with pytest.raises(AssertionError, match="autoscaling_confg"):
        _check_keys(config, read)


def _check_keys(given, read):
    for key, value in given.items():
        assert key in type(read).model_fields, key
        there = getattr(read, key)
        for one, of in zip(value, there, strict=True) if isinstance(value, list) else [(value, there)]:
            if isinstance(of, BaseModel):
                _check_keys(one, of)


def test_the_service_is_reached_where_serve_listens():
    """KubeRay asks the head's container which port is Serve's; a pod answers its probe only where Serve listens at all its addresses."""
    config = _served()
    ports = _cluster_of(SERVICE)["headGroupSpec"]["template"]["spec"]["containers"][0]["ports"]
    assert {port["name"]: port["containerPort"] for port in ports}["serve"] == config["http_options"]["port"]
    assert config["http_options"]["host"] == "0.0.0.0"
    assert f"service/{_kubernetes(SERVICE)['metadata']['name']}-serve-svc 8000" in (ROOT / "cluster" / "kuberay" / SERVICE).read_text()


def test_the_pods_of_the_service_are_there_when_it_begins():
    """A pool takes what memory there is; and its replicas lie apart only where there are as many pods."""
    kinds = _autoscaled(SERVICE)["available_node_types"]
    assert kinds["headgroup"]["resources"] == {"CPU": 0, "GPU": 0, "memory": 10 * 2**30}
    assert kinds["search"]["resources"] == {"CPU": 7, "memory": 30 * 2**30}
    assert kinds["search"]["min_workers"] >= _served()["applications"][0]["args"]["shard_replicas"]


@pytest.mark.parametrize("name", KUBERAY[1:])
def test_the_port_of_ray_client_is_not_opened(name):
    """No command joins by it."""
    (head,) = _cluster_of(name)["headGroupSpec"]["template"]["spec"]["containers"]
    assert 10001 not in {port["containerPort"] for port in head["ports"]}


def _pins():
    return dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)


def test_all_nodes_have_the_versions_that_were_tested():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    image = f"YOUR-REGISTRY/raydense:{version}"
    assert [_launcher(name)["docker"]["image"] for name in LAUNCHER] == [image] * 2
    for name in KUBERAY[1:]:
        spec = _cluster_of(name)
        assert spec["rayVersion"] == _pins()["ray"]
        pods = [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
        pods += [_kubernetes(name)["spec"]["submitterPodTemplate"]["spec"]] if name in JOBS else []
        assert {container["image"] for pod in pods for container in pod["containers"]} == {image}
    assert image in (ROOT / "cluster" / "Dockerfile").read_text()


def test_the_image_takes_its_versions_from_the_constraints(tmp_path):
    dockerfile = (ROOT / "cluster" / "Dockerfile").read_text()
    assert (
        re.search(r"\(Python ([\d.]+)\)", (ROOT / "constraints.txt").read_text())[1]
        == re.search(r"^ARG BASE=python:([\d.]+)-", dockerfile, re.M)[1]
    )
    install = re.search(r"^RUN (torch=.*?[^\\])\n\n", dockerfile, re.M | re.S)[1]
    (tmp_path / "pip").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "pip").chmod(0o755)
    install = install.replace("/tmp/constraints.txt", str(tmp_path / "constraints.txt"))
    given = {"CUDA": "cu126", "TORCH_INDEX": "https://mirror/torch", "EXTRAS": "lora,mlflow", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", install], cwd=ROOT, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"\$\{(\w+)\}", install)) - {"torch"} <= set(re.findall(r"^ARG (\w+)", dockerfile, re.M))
    torch, whole, without, faiss = done.stdout.splitlines()
    assert torch.endswith(f"torch=={_pins()['torch']}+cu126")
    assert "--extra-index-url https://mirror/torch" in torch
    assert "-c constraints.txt .[lora,mlflow]" in whole
    assert without == "uninstall --yes faiss-cpu"
    assert faiss.endswith(f"faiss-gpu=={_pins()['faiss-cpu']}")


def test_the_image_is_made_from_what_is_in_the_repository():
    dockerfile = (ROOT / "cluster" / "Dockerfile").read_text()
    sources = [source for line in re.findall(r"^COPY (.+) \S+$", dockerfile, re.M) for source in line.split()]
    assert all((ROOT / source).exists() for source in sources)
    _, everything, *kept, cache = (ROOT / ".dockerignore").read_text().splitlines()
    assert (everything, kept, cache) == ("*", [f"!{source}" for source in sources], "**/__pycache__")
    assert re.search(r"^USER 1000:100$", dockerfile, re.M), "with runAsNonRoot Kubernetes refuses a name"
