"""Lets its user read all of a folder again, and says what modes there were: a JSON object, by path, on stdout.

Runs inside a sandbox, when no program of a submission's runs any more. Stand-alone: standard library only.
"""

import json
import os
import stat
import sys

modes = {}
waiting = [""]
os.chmod(sys.argv[1], 0o700)
os.chdir(sys.argv[1])
while waiting:
    folder = waiting.pop()
    for name in os.listdir(folder or "."):
        path = os.path.join(folder, name)
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            continue
        modes[path] = stat.S_IMODE(found.st_mode)
        if stat.S_ISDIR(found.st_mode):
            os.chmod(path, modes[path] | 0o700)
            waiting.append(path)
        elif stat.S_ISREG(found.st_mode):
            os.chmod(path, modes[path] | 0o400)
sys.stdout.write(json.dumps(modes))
