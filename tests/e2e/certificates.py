"""Authorities and certificates for tests, made with the openssl program."""

import os
import subprocess


class Authority:
    """An authority of its own in `directory`/`name`."""

    def __init__(self, directory, name):
        self.directory = os.path.join(directory, name)
        os.mkdir(self.directory)
        self.certificate = os.path.join(self.directory, "ca.pem")
        self.key = os.path.join(self.directory, "ca.key")
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                "2", "-subj", f"/CN={name}", "-keyout", self.key, "-out", self.certificate)

    def issue(self, name, names="IP:127.0.0.1,DNS:localhost", days=1, role=None):
        """Flags with a certificate of this authority; with days < 0 one that has expired."""
        names += f",URI:tercio:role/{role}" if role else ""
        key, request, certificate, extensions = (os.path.join(self.directory, name + end)
                                                 for end in (".key", ".csr", ".pem", ".ext"))
        with open(extensions, "w", encoding="utf-8") as file:
            file.write(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
                f"/CN={name}", "-keyout", key, "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial",
                "-days", str(days), "-extfile", extensions, "-out", certificate)
        return Flags(certificate, key, self.certificate)


class Flags:

    def __init__(self, certificate, key, authority):
        self.certificate, self.key, self.authority = certificate, key, authority

    def __iter__(self):
        return iter(["--tls-cert", self.certificate, "--tls-key", self.key, "--tls-ca", self.authority])

    def with_authority(self, authority):
        return Flags(self.certificate, self.key, authority.certificate)


def openssl(*arguments):
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"openssl {' '.join(arguments)}\n{done.stderr}")
