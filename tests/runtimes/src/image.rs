//! Images without a registry and without a builder.
//!
//! An image is one tar file that is an OCI layout (`index.json`, `blobs/`) and a docker archive (`manifest.json`) at
//! the same time: `ctr images import`, `podman load` and `docker load` all accept it. Its tag is not `latest`, because
//! runtimes would pull that again.

use std::process::Command;

use serde_json::{json, Value};
use sha2::{Digest, Sha256};

use crate::Stage;

/// Debian's, from `busybox-static`: it needs no library, so it is a complete root file system.
const BUSYBOX: &str = "/bin/busybox";
/// An image with all of busybox's commands. Its default command is a shell.
pub const BOX: &str = "podwire.test/box:1";
/// An image that does nothing until it is killed, for the container that holds a pod's namespaces.
pub const PAUSE: &str = "podwire.test/pause:1";

const USERS: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";

/// The images of the tests, each as the bytes of its tar file.
pub fn all() -> Vec<(&'static str, Vec<u8>)> {
    let run = |words: &[&str]| json!({"Entrypoint": words, "Env": ["PATH=/bin"]});
    let shell = json!({"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"]});
    let layer = layer();
    vec![
        (BOX, archive(BOX, &layer, &shell)),
        (PAUSE, archive(PAUSE, &layer, &run(&["/bin/busybox", "sleep", "1000000"]))),
    ]
}

impl Stage {
    /// Writes the images into `/var/tmp/images` of the stage, and returns their paths there.
    pub fn images(&self) -> Vec<String> {
        self.sh("mkdir -p /var/tmp/images");
        let put = |(n, (_, bytes)): (usize, (&str, Vec<u8>))| {
            let path = format!("/var/tmp/images/{n}.tar");
            std::fs::write(self.file(&path), bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
            path
        };
        all().into_iter().enumerate().map(put).collect()
    }
}

/// One layer: busybox, a link for each of its commands, and the few files that programs expect.
fn layer() -> Vec<u8> {
    let busybox = std::fs::read(BUSYBOX).expect("busybox (Debian's package busybox-static)");
    let needs_libraries = busybox.windows(9).any(|bytes| bytes == b"/ld-linux");
    assert!(!needs_libraries, "{BUSYBOX} is not static: install Debian's busybox-static");
    let listed = Command::new(BUSYBOX).arg("--list").output().expect("busybox").stdout;
    let mut tar = tar::Builder::new(Vec::new());
    for folder in ["bin", "dev", "etc", "proc", "root", "sys", "tmp", "var", "www"] {
        let mode = if folder == "tmp" { 0o1777 } else { 0o755 };
        add(&mut tar, tar::EntryType::Directory, &format!("{folder}/"), (mode, &[]));
    }
    add(&mut tar, tar::EntryType::Regular, "bin/busybox", (0o755, &busybox));
    add(&mut tar, tar::EntryType::Regular, "etc/passwd", (0o644, USERS.as_bytes()));
    add(&mut tar, tar::EntryType::Regular, "etc/group", (0o644, b"root:x:0:\nnobody:x:65534:\n"));
    for name in String::from_utf8_lossy(&listed).lines().filter(|name| *name != "busybox") {
        let mut link = header(tar::EntryType::Symlink, 0o777, 0);
        tar.append_link(&mut link, format!("bin/{name}"), "busybox").expect("a link");
    }
    tar.into_inner().expect("a tar")
}

fn header(kind: tar::EntryType, mode: u32, size: usize) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    // The same files make the same image at any time.
    header.set_mtime(0);
    header
}

fn add(tar: &mut tar::Builder<Vec<u8>>, kind: tar::EntryType, name: &str, (mode, content): (u32, &[u8])) {
    tar.append_data(&mut header(kind, mode, content.len()), name, content).expect("an entry");
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The tar file of an image with this one layer.
fn archive(reference: &str, layer: &[u8], config: &Value) -> Vec<u8> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let bytes = |value: Value| value.to_string().into_bytes();
    let blob = |kind: &str, blob: &[u8]| json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": format!("sha256:{}", digest(blob)), "size": blob.len()});
    let config = bytes(json!({
        "architecture": architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(layer))]},
    }));
    let manifest = bytes(json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", &config),
        "layers": [blob("layer.v1.tar", layer)],
    }));
    let mut listed = blob("manifest.v1+json", &manifest);
    listed["platform"] = json!({"architecture": architecture, "os": "linux"});
    let tag = reference.rsplit(':').next().unwrap_or_default();
    listed["annotations"] =
        json!({"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": tag});
    let index = bytes(
        json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [listed]}),
    );
    let path = |blob: &[u8]| format!("blobs/sha256/{}", digest(blob));
    let docker = bytes(json!([{"Config": path(&config), "RepoTags": [reference], "Layers": [path(layer)]}]));
    let mut tar = tar::Builder::new(Vec::new());
    for folder in ["blobs/", "blobs/sha256/"] {
        add(&mut tar, tar::EntryType::Directory, folder, (0o755, &[]));
    }
    let layout: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
    let named = [("oci-layout", layout), ("index.json", &index), ("manifest.json", &docker)];
    for (name, content) in named {
        add(&mut tar, tar::EntryType::Regular, name, (0o644, content));
    }
    for blob in [&config[..], &manifest, layer] {
        add(&mut tar, tar::EntryType::Regular, &path(blob), (0o644, blob));
    }
    tar.into_inner().expect("a tar")
}
