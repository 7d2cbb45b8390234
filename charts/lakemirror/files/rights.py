"""helm test: does the operator's service account have the rights that it needs, and none that is too much?

Reads {"wanted": [{"namespaces": [...], "rules": [rules of a Role]}], "namespaces": [...]}, where namespace ""
stands for all. Asks with SelfSubjectAccessReview, as `kubectl auth can-i` does; leaves with exit code 1 if an
answer is not as it should be.
"""

import json
import os
import ssl
import sys
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
REVIEWS = f"{API}/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
UNWANTED = [
    ("", "secrets", "get"),
    ("", "secrets", "list"),
    ("", "secrets", "patch"),
    ("", "pods/exec", "create"),
    ("", "nodes", "delete"),
]


def allowed(namespace, group, resource, verb):
    resource, _, subresource = resource.partition("/")
    attributes = {"namespace": namespace, "group": group, "resource": resource, "subresource": subresource}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    review["spec"] = {"resourceAttributes": attributes | {"verb": verb}}
    headers = {
        "Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}",
        "Content-Type": "application/json",
    }
    request = urllib.request.Request(REVIEWS, json.dumps(review).encode(), headers)
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, context=trust, timeout=10) as answer:
        return json.load(answer)["status"]["allowed"]


def expectations(document):
    for part in document["wanted"]:
        for namespace in part["namespaces"]:
            for rule in part["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        for verb in rule["verbs"]:
                            yield (namespace, group, resource, verb), True
    for namespace in document["namespaces"]:
        for right in UNWANTED:
            yield (namespace, *right), False


asked, wrong = 0, 0
for right, expected in expectations(json.loads(Path(sys.argv[1]).read_text())):
    asked += 1
    if allowed(*right) != expected:
        wrong += 1
        namespace, group, resource, verb = right
        fault, where = "misses" if expected else "should not have", namespace or "all namespaces"
        print(f"{fault}: {verb} {resource} of {group or 'core'} in {where}")
print(f"{asked} rights asked for, {wrong} wrong")
sys.exit(1 if wrong else 0)
