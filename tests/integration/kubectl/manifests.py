"""Manifests of the kubectl tests."""

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: "example.com/web:1"
        command: [sh, -c, 'exec python3 -u -m http.server 8080 --bind "$IP" --directory /etc']
        env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
        ports: [{containerPort: 8080, name: http}]
        readinessProbe: {tcpSocket: {port: http}, periodSeconds: 1}
        resources: {requests: {cpu: 10m, memory: 16Mi}}
---
apiVersion: v1
kind: Service
metadata: {name: web, labels: {app: web}}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
"""

TALKER = """
apiVersion: v1
kind: Pod
metadata: {name: talker, labels: {app: talker}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: first
    image: "busybox:1"
    command: [sh, -c, "echo first speaks; echo a second line; while :; do sleep 0.3; echo on; done"]
  - name: second
    image: "busybox:1"
    command: [sh, -c, "echo second speaks; exec sleep 1000"]
"""

CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: room}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""

JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Master: &role
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          terminationGracePeriodSeconds: 1
          containers:
          - name: pytorch
            image: "busybox:1"
            command: [sleep, "1000"]
            resources: {requests: {cpu: 10m, memory: 16Mi}}
    Worker: *role
"""

CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {name: %s}
data: {colour: %s}
"""


def pod(name: str, command: str, **spec: str) -> str:
    """A pod of one container that runs a command in a shell; further fields as YAML."""
    more = "".join(f"  {key}: {value}\n" for key, value in spec.items())
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: 1
{more}  containers:
  - name: main
    image: "busybox:1"
    command: [sh, -c, {command!r}]
"""


def deployment(name: str, replicas: int = 1, selector: str = "{}") -> str:
    """A deployment whose pods sleep."""
    return f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 0
      nodeSelector: {selector}
      containers:
      - name: main
        image: "busybox:1"
        command: [sleep, "1000"]
"""


WITH_SIDECAR = """
apiVersion: v1
kind: Pod
metadata: {name: helped}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: side, image: "busybox:1", restartPolicy: Always, command: [sleep, "1000"]}
  containers:
  - name: main
    image: "busybox:1"
    command: [sleep, "1000"]
    resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]
"""
