//! TLS with server and client certificates, and passwords.

use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, Permission, TlsOptions};
use podwire_subnets::{Etcd, EtcdOptions, Health};
use podwire_test_servers::{Certificates, EtcdServer};

use crate::watching::{names, until};
use crate::{options, registration, NETWORK};

#[tokio::test]
async fn mutual_tls_and_a_password() {
    let files = Certificates::create();
    let path = |name: &str| files.path(name);
    let server = EtcdServer::start_with_tls(&files);

    let read = |name: &str| std::fs::read(path(name)).unwrap();
    let tls = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(read("ca.pem")))
        .identity(Identity::from_pem(read("client.pem"), read("client.key")));
    let mut root = Client::connect([server.url()], Some(ConnectOptions::new().with_tls(tls))).await.unwrap();
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
        ..options(&server)
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

    let failure =
        |options: EtcdOptions| async { Etcd::new(options).unwrap().network().await.unwrap_err().to_string() };
    let error = failure(EtcdOptions { user: Some(("flannel".into(), "wrong".into())), ..good.clone() }).await;
    assert!(error.contains("authentication failed, invalid user ID or password"), "{error}");
    let error = failure(EtcdOptions { prefix: "/elsewhere".into(), ..good.clone() }).await;
    assert!(error.contains("permission denied"), "{error}");
    let error = failure(EtcdOptions { ca_file: Some(path("stranger.pem")), ..good.clone() }).await;
    assert!(error.contains("invalid peer certificate"), "{error}");
    let error = failure(EtcdOptions { ca_file: Some(path("missing.pem")), ..good.clone() }).await;
    assert!(error.contains("missing.pem") && error.contains("No such file"), "{error}");
    let error = failure(EtcdOptions { cert_file: None, key_file: None, ..good.clone() }).await;
    assert!(error.starts_with(&format!("etcd {}: connect: ", server.url())), "{error}");
    let without_key = Etcd::new(EtcdOptions { key_file: None, ..good });
    assert!(without_key.unwrap_err().to_string().contains("a certificate needs its key"));
}
