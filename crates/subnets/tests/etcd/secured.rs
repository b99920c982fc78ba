//! TLS with certificates of both sides, and passwords.

use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, Permission, TlsOptions};
use podwire_subnets::{Etcd, EtcdOptions, Health};

use crate::server::{openssl, Scratch, Server};
use crate::watching::{names, until};
use crate::{registration, NETWORK};

/// An authority, a server's and a client's certificate, and an authority that nobody knows.
fn certificates() -> Scratch {
    let scratch = Scratch::new();
    let run = |arguments: &str| openssl(&scratch.0, arguments);
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for authority in ["ca", "stranger"] {
        run(&format!(
            "req -x509 {key} -keyout {authority}.key -out {authority}.pem -days 2 -subj /CN={authority}"
        ));
    }
    std::fs::write(scratch.0.join("server.ext"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    std::fs::write(scratch.0.join("client.ext"), "extendedKeyUsage=clientAuth\n").unwrap();
    for name in ["server", "client"] {
        run(&format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        run(&format!("x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile {name}.ext -out {name}.pem"));
    }
    scratch
}

#[tokio::test]
async fn tls_of_both_sides_and_a_password() {
    let files = certificates();
    let path = |name: &str| files.0.join(name);
    let argument = |key: &str, name: &str| [format!("--{key}"), path(name).display().to_string()];
    let mut more = [
        argument("cert-file", "server.pem"),
        argument("key-file", "server.key"),
        argument("trusted-ca-file", "ca.pem"),
    ]
    .concat();
    more.push("--client-cert-auth".into());
    let server = Server::with("https", &more).await;

    let read = |name: &str| std::fs::read(path(name)).unwrap();
    let tls = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(read("ca.pem")))
        .identity(Identity::from_pem(read("client.pem"), read("client.key")));
    let mut root = Client::connect([&server.url], Some(ConnectOptions::new().with_tls(tls))).await.unwrap();
    root.put("/coreos.com/network/config", NETWORK, None).await.unwrap();
    root.role_add("flannel").await.unwrap();
    let all = Permission::read_write("/coreos.com/network/").with_prefix();
    root.role_grant_permission("flannel", all).await.unwrap();
    for (user, password, role) in [("root", "secret", "root"), ("flannel", "pass word", "flannel")] {
        root.user_add(user, password, None).await.unwrap();
        root.user_grant_role(user, role).await.unwrap();
    }
    root.auth_enable().await.unwrap();

    let good = EtcdOptions {
        ca_file: Some(path("ca.pem")),
        cert_file: Some(path("client.pem")),
        key_file: Some(path("client.key")),
        user: Some(("flannel".into(), "pass word".into())),
        ..server.options()
    };
    let source = Etcd::new(good.clone()).unwrap();
    let node = source.acquire(&registration(1)).await.unwrap();
    let mut watch = source.watch();
    let seen = until(&mut watch, |snapshot| snapshot.nodes.is_some()).await;
    assert_eq!((names(&seen), &seen.health), (vec![node.name.as_str()], &Health::Current));
    let kept = tokio::time::timeout(Duration::from_secs(2), source.keep(&node)).await;
    assert!(kept.is_err(), "still ours: {kept:?}");
    source.release(&node).await.unwrap();
    until(&mut watch, |snapshot| names(snapshot).is_empty()).await;

    let refusal =
        |options: EtcdOptions| async { Etcd::new(options).unwrap().network().await.unwrap_err().to_string() };
    let error = refusal(EtcdOptions { user: Some(("flannel".into(), "wrong".into())), ..good.clone() }).await;
    assert!(error.contains("authentication failed, invalid user ID or password"), "{error}");
    let error = refusal(EtcdOptions { prefix: "/elsewhere".into(), ..good.clone() }).await;
    assert!(error.contains("permission denied"), "{error}");
    let error = refusal(EtcdOptions { ca_file: Some(path("stranger.pem")), ..good.clone() }).await;
    assert!(error.contains("invalid peer certificate"), "{error}");
    let error = refusal(EtcdOptions { ca_file: Some(path("missing.pem")), ..good.clone() }).await;
    assert!(error.contains("missing.pem") && error.contains("No such file"), "{error}");
    let error = refusal(EtcdOptions { cert_file: None, key_file: None, ..good.clone() }).await;
    assert!(error.starts_with(&format!("etcd {}: connect: ", server.url)), "{error}");
    let half = Etcd::new(EtcdOptions { key_file: None, ..good });
    assert!(half.unwrap_err().to_string().contains("a certificate needs its key"));
}
