"""Asks gRPC's health service in plain text, as the kubelet does:  ask_health.py ADDRESS SERVICE [METHOD]

Prints SERVING or NOT_SERVING, or the name of the code with which the call failed. For the Python that has grpcio.
"""

import sys

import grpc

CHECK = "/grpc.health.v1.Health/Check"
# grpc.health.v1: HealthCheckRequest.service is field 1, HealthCheckResponse.status field 1: 1 SERVING, 2 NOT_SERVING.
STATES = {b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING"}


def main():
    address, service, method = (*sys.argv[1:], CHECK)[:3]
    request = b"\x0a" + bytes([len(service)]) + service.encode() if service else b""
    call = grpc.insecure_channel(address).unary_unary(method)
    try:
        print(STATES[call(request, timeout=20)])
    except grpc.RpcError as error:
        print(error.code().name)


if __name__ == "__main__":
    main()
