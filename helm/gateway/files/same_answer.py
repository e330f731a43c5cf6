import base64
import json
import os
import sys
import urllib.request
import uuid

key = base64.b64encode(f"{os.environ['WRITE_KEY']}:".encode()).decode()
event = {"messageId": f"helm-test-{uuid.uuid4()}", "type": "track", "event": "Helm Tested", "userId": "helm"}
headers = {"Authorization": f"Basic {key}", "Content-Type": "application/json"}

answers = []
for _ in range(2):
    request = urllib.request.Request(os.environ["URL"], json.dumps(event).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        answers.append((answer.read(), answer.headers.get("Idempotent-Replayed")))

(first, _), (second, replayed) = answers
print(first.decode(), second.decode(), f"Idempotent-Replayed: {replayed}", sep="\n")
sys.exit(0 if first == second and replayed == "true" else 1)
