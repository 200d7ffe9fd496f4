"""A caller waits before it looks, so that a result that is there wakes nobody. Mended: it looks first."""

import queue
import threading

import numpy as np

from tests.faults.frame import MENDED, count, run, svd

requests, results = queue.Queue(), {}
done = threading.Condition()


def work():
    while (request := requests.get()) is not None:
        values = np.random.default_rng(request).standard_normal((48, 48))
        result = float(np.linalg.svd(values, compute_uv=False)[0])
        with done:
            results[request] = result
            done.notify_all()


def parse(index):
    requests.put(index)
    while True:
        sum(hash(f"{index}:{position}") & 7 for position in range(30000))
        if index in results:  # what is told now is told to nobody
            return index


def embedding(request):
    with done:
        if MENDED:
            done.wait_for(lambda: request in results)
        else:
            while not done.wait(0.03):  # fault
                if request in results:
                    count()
                    break
        return results.pop(request)


thread = threading.Thread(target=work, name="embedder")
thread.start()
run(30, parse=parse, embedding=embedding, search=svd(90))
requests.put(None)
thread.join()
