#!/bin/sh
# FOLDER: an authority (ca.pem), a certificate of it for 127.0.0.1 (server.pem, server.key), one for a client (client.*), and an
# authority that has signed neither (other.pem). For two days. No CommonName: etcd's gateway refuses one where it has users.
set -e
cd "$1"
key="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
for ca in ca other; do
    openssl req -x509 $key -keyout $ca.key -out $ca.pem -subj /CN=$ca -days 2 2>/dev/null
done
for who in server client; do
    openssl req $key -keyout $who.key -out $who.csr -subj /O=$who 2>/dev/null
    echo "subjectAltName=IP:127.0.0.1,DNS:localhost" >$who.ext
    openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile $who.ext -out $who.pem 2>/dev/null
done
