"""inject.py OUTER-SOURCE|- OUTER-DESTINATION PORT MAC INNER-SOURCE INNER-DESTINATION TEXT: sends a packet in a VXLAN packet.

With an outer source the packet is sent by a raw socket, otherwise by an ordinary one. PORT 0 means IPIP instead of VXLAN. The
inner packet is UDP to port 9 with the text, or a router advertisement if that is the text. With an outer source, the end of
the text says how the outer packet is cut: "in-fragments" behind the inner IP header, "in-small-fragments" behind the headers
of UDP and VXLAN, "behind-options" (IPv6 only) before the header of UDP.
"""

import ipaddress
import socket
import struct
import sys

outer_source, outer_destination, port, mac, inner_source, inner_destination, text = sys.argv[1:]


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def packet(source, destination, protocol, payload):
    source, destination = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    if source.version == 6:
        header = struct.pack("!IHBB", 6 << 28, len(payload), protocol, 255)
        return header + source.packed + destination.packed + payload
    fields = [0x45, 0, 20 + len(payload), 7, 0, 64, protocol, 0, source.packed, destination.packed]
    fields[7] = checksum(struct.pack("!BBHHHBBH4s4s", *fields))
    return struct.pack("!BBHHHBBH4s4s", *fields) + payload


def fragments(source, destination, protocol, payload, length):
    """Two packets, the first with this length."""
    source, destination = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    for offset, more, part in (0, 1, payload[:length]), (length // 8, 0, payload[length:]):
        if source.version == 6:
            header = struct.pack("!BBHI", protocol, 0, offset << 3 | more, 7)
            yield packet(source, destination, 44, header + part)
        else:
            whole = packet(source, destination, protocol, part)
            yield whole[:6] + struct.pack("!H", more << 13 | offset) + whole[8:]


def udp(source, destination, to, payload):
    length = 8 + len(payload)
    ends = ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    pseudo = ends + struct.pack("!IBBH", length, 0, 0, 17)
    header = struct.pack("!HHH", 40000, to, length)
    return header + struct.pack("!H", checksum(pseudo + header + b"\0\0" + payload) or 0xFFFF) + payload


def router_advertisement(source, destination):
    ends = ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    # Type, code, checksum, hop limit, flags, lifetime of the default route, and two timers.
    message = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
    pseudo = ends + struct.pack("!II", len(message), 58)
    return message[:2] + struct.pack("!H", checksum(pseudo + message)) + message[4:]


if text == "router-advertisement":
    inner = packet(inner_source, "ff02::1", 58, router_advertisement(inner_source, "ff02::1"))
else:
    inner = packet(inner_source, inner_destination, 17, udp(inner_source, inner_destination, 9, text.encode()))
is_v6 = ":" in outer_destination
kind = b"\x86\xdd" if ":" in inner_source else b"\x08\0"
frame = bytes.fromhex(mac.replace(":", "")) + b"\x02\0\0\0\0\x77" + kind + inner
vxlan = struct.pack("!II", 0x08000000, 1 << 8) + frame
family = socket.AF_INET6 if is_v6 else socket.AF_INET
if outer_source == "-" and port != "0":
    socket.socket(family, socket.SOCK_DGRAM).sendto(vxlan, (outer_destination, int(port)))
elif port == "0":
    raw = socket.socket(family, socket.SOCK_RAW, 4)
    raw.sendto(inner, (outer_destination, 0))
else:
    datagram = udp(outer_source, outer_destination, int(port), vxlan)
    raw = socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)
    outer = [packet(outer_source, outer_destination, 17, datagram)]
    if text.endswith("in-small-fragments"):
        outer = fragments(outer_source, outer_destination, 17, datagram, 16)
    elif text.endswith("in-fragments"):
        outer = fragments(outer_source, outer_destination, 17, datagram, 72)
    elif text.endswith("behind-options"):
        options = struct.pack("!BBBBI", 17, 0, 1, 4, 0)
        outer = fragments(outer_source, outer_destination, 60, options + datagram, 8)
    if not is_v6:
        raw.setsockopt(socket.IPPROTO_IP, 22, 1)  # IP_NODEFRAG
    for each in outer:
        raw.sendto(each, (outer_destination, 0))
