import os

# Threads of libgomp spin while they wait. With a busy process beside them (an engine, sandboxes) that made a pass 5
# times slower; sleeping costs nothing measurable. It is read once, when torch is first imported, hence here.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
