"""frames.py send DEVICE: reads frames in hexadecimal from standard input, one a line, and sends them.
frames.py sniff DEVICE: prints the texts (`<…>`) of the frames that arrive, until `<end>`; fails after a minute without any.
"""

import re
import socket
import sys

sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
sock.bind((sys.argv[2], 0))
sock.settimeout(60)
if sys.argv[1] == "send":
    for line in sys.stdin:
        sock.send(bytes.fromhex(line))
else:
    print("ready", flush=True)
    text = ""
    while text != "end":
        frame, sender = sock.recvfrom(9000)
        found = re.search(rb"<([a-z0-9 -]*)>", frame)
        if found and sender[2] != 4:  # PACKET_OUTGOING
            text = found[1].decode()
            print(text, flush=True)
