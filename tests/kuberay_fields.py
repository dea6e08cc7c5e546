"""The fields that our Kubernetes files may use: of KubeRay 1.7's RayCluster, RayJob and RayService (ray.io/v1), and of the pods in them.

Closed: what is not listed is refused, so that no misspelt field is silently ignored. It is narrower than the API: whoever needs another
field adds it here, from KubeRay's and Kubernetes' API references. For the answer of an API server itself run `kubectl apply --dry-run=server`.
"""

from typing import Any

import jsonschema

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NAME: Schema = {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,45}[a-z0-9])?$"}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def fields(*required: str, **known: Schema) -> Schema:
    """An object with these fields and no others."""
    return {"type": "object", "properties": known, "required": list(required), "additionalProperties": False}


def each(item: Schema) -> Schema:
    """A list of them, not empty."""
    return {"type": "array", "items": item, "minItems": 1}


def one_of(*words: str) -> Schema:
    """One of these words."""
    return {"enum": list(words)}


AMOUNTS: Schema = {
    "type": "object",
    "properties": {"cpu": QUANTITY, "memory": QUANTITY, "ephemeral-storage": QUANTITY, "nvidia.com/gpu": QUANTITY},
    "additionalProperties": False,
}
RESOURCES = fields("requests", requests=AMOUNTS, limits=AMOUNTS)
VARIABLE = fields("name", "value", name=TEXT, value={"type": "string"})
PROBE = fields(
    "httpGet", httpGet=fields("path", "port", path=TEXT, port=COUNT), periodSeconds=COUNT, timeoutSeconds=COUNT, failureThreshold=COUNT
)
SECCOMP = fields("type", type=one_of("RuntimeDefault"))
POD_SECURITY = fields(runAsUser=COUNT, runAsGroup=COUNT, fsGroup=COUNT, runAsNonRoot=FLAG, seccompProfile=SECCOMP)
CONTAINER_SECURITY = fields(allowPrivilegeEscalation=FLAG, capabilities=fields("drop", drop=each(one_of("ALL"))))
CONTAINER = fields(
    "name",
    "image",
    "resources",
    name=NAME,
    image=TEXT,
    imagePullPolicy=one_of("Always", "IfNotPresent", "Never"),
    env=each(VARIABLE),
    envFrom=each(fields("secretRef", secretRef=fields("name", name=NAME))),
    ports=each(fields("name", "containerPort", name=NAME, containerPort=COUNT)),
    resources=RESOURCES,
    securityContext=CONTAINER_SECURITY,
    readinessProbe=PROBE,
    volumeMounts=each(fields("name", "mountPath", name=NAME, mountPath=TEXT, readOnly=FLAG)),
)
TOLERATION = fields(
    "key",
    "operator",
    key=TEXT,
    operator=one_of("Exists", "Equal"),
    value=TEXT,
    effect=one_of("NoSchedule", "NoExecute", "PreferNoSchedule"),
)
VOLUME: Schema = {
    "oneOf": [
        fields("name", "persistentVolumeClaim", name=NAME, persistentVolumeClaim=fields("claimName", claimName=NAME)),
        fields("name", "emptyDir", name=NAME, emptyDir=fields("sizeLimit", sizeLimit=QUANTITY)),
    ]
}
POD = fields(
    "containers",
    "volumes",
    containers=each(CONTAINER),
    volumes=each(VOLUME),
    securityContext=POD_SECURITY,
    nodeSelector=TEXTS,
    tolerations=each(TOLERATION),
    priorityClassName=TEXT,
    serviceAccountName=NAME,
    imagePullSecrets=each(fields("name", name=NAME)),
    terminationGracePeriodSeconds=COUNT,
    # no restartPolicy: under autoscaler v2 KubeRay sets it, and refuses others
)
TEMPLATE = fields("spec", metadata=fields(labels=TEXTS, annotations=TEXTS), spec=POD)
SUBMITTER = fields(
    "spec",
    spec=fields(
        "containers",
        "restartPolicy",
        containers=each(CONTAINER),
        restartPolicy=one_of("Never"),
        securityContext=POD_SECURITY,
        imagePullSecrets=each(fields("name", name=NAME)),
    ),
)
HEAD = fields(
    "template", "rayStartParams", template=TEMPLATE, rayStartParams=TEXTS, serviceType=one_of("ClusterIP"), labels=TEXTS, resources=TEXTS
)
WORKERS = fields(
    "groupName",
    "minReplicas",
    "maxReplicas",
    "template",
    groupName=NAME,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    idleTimeoutSeconds=COUNT,
    priority={"type": "integer"},
    rayStartParams=TEXTS,
    labels=TEXTS,
    resources=TEXTS,
    template=TEMPLATE,
)
AUTOSCALER = fields(
    "version",
    version=one_of("v2"),
    idleTimeoutSeconds=COUNT,
    upscalingMode=one_of("Default", "Aggressive", "Conservative"),
    imagePullPolicy=one_of("Always", "IfNotPresent", "Never"),
    env=each(VARIABLE),
    resources=RESOURCES,
    securityContext=CONTAINER_SECURITY,
)
CLUSTER = fields(
    "rayVersion",
    "headGroupSpec",
    "workerGroupSpecs",
    rayVersion=TEXT,
    enableInTreeAutoscaling=FLAG,
    autoscalerOptions=AUTOSCALER,
    authOptions=fields("mode", mode=one_of("token")),
    suspend=FLAG,
    headGroupSpec=HEAD,
    workerGroupSpecs=each(WORKERS),
)
JOB = fields(
    "entrypoint",
    "rayClusterSpec",
    entrypoint=TEXT,
    runtimeEnvYAML=TEXT,
    metadata=TEXTS,
    backoffLimit=COUNT,
    activeDeadlineSeconds=COUNT,
    preRunningDeadlineSeconds=COUNT,
    submissionMode=one_of("K8sJobMode", "HTTPMode", "SidecarMode"),
    submitterPodTemplate=SUBMITTER,
    suspend=FLAG,
    shutdownAfterJobFinishes=FLAG,
    ttlSecondsAfterFinished=COUNT,
    entrypointNumCpus={"type": "number"},
    rayClusterSpec=CLUSTER,
)
SERVICE = fields(
    "serveConfigV2",
    "rayClusterConfig",
    serveConfigV2=TEXT,
    upgradeStrategy=fields("type", type=one_of("NewCluster", "None")),
    rayClusterDeletionDelaySeconds=COUNT,
    excludeHeadPodFromServeSvc=FLAG,
    suspend=FLAG,
    rayClusterConfig=CLUSTER,
)
CLAIM = fields(
    "accessModes",
    "resources",
    accessModes=each(one_of("ReadWriteMany")),
    storageClassName=TEXT,
    resources=fields("requests", requests=fields("storage", storage=QUANTITY)),
)
KINDS = {
    ("ray.io/v1", "RayCluster"): CLUSTER,
    ("ray.io/v1", "RayJob"): JOB,
    ("ray.io/v1", "RayService"): SERVICE,
    ("v1", "PersistentVolumeClaim"): CLAIM,
}


def faults(document: Schema) -> list[str]:
    """What is wrong with a Kubernetes object, a line each: where, and what."""
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind not in KINDS:
        return [f"kind: {kind} is none of {list(KINDS)}"]
    metadata = fields("name", name=NAME, namespace=NAME, labels=TEXTS, annotations=TEXTS)
    whole = fields("apiVersion", "kind", "metadata", "spec", apiVersion=TEXT, kind=TEXT, metadata=metadata, spec=KINDS[kind])
    return [f"{error.json_path}: {error.message}" for error in jsonschema.Draft202012Validator(whole).iter_errors(document)]
