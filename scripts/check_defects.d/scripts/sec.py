# ruff: noqa
import sys, time, argparse
from perfharness import PerfRecorder

p = argparse.ArgumentParser()
p.add_argument("--api-key")
p.add_argument("--url")
p.add_argument("--db-dsn")
p.add_argument("--bearer")
p.add_argument("--hf_token")
p.add_argument("--aws")
p.add_argument("--cfg")
p.add_argument("--private")
a = p.parse_args()
a.config = {
    "headers": {"Authorization": "SECRET_NESTED_AUTH", "X": "Bearer SECRET_NESTED_BEARER"},
    "token": "SECRET_NESTED_TOKEN",
}
a.client = type("C", (), {"__repr__": lambda s: "Client(password='SECRET_REPR')"})()
perf = PerfRecorder("rec", a)
with perf.range("pipeline"):
    for i in range(4):
        with perf.batch(i, total_items=1):
            time.sleep(0.002)
perf.finalize()
print("hello")
