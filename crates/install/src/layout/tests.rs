use std::path::Path;

use super::*;
use crate::scratch::Scratch;

fn folders(scratch: &Scratch, runtime: Runtime) -> (String, String) {
    let layout = runtime.layout(&scratch.root()).unwrap().unwrap();
    let dirs: Vec<_> = layout.bin_dirs.iter().map(|dir| dir.display().to_string()).collect();
    (dirs.join(":"), layout.conf_dir.display().to_string())
}

fn pair(bin: &str, conf: &str) -> (String, String) {
    (bin.into(), conf.into())
}

#[test]
fn a_runtime_without_a_config_uses_the_usual_folders() {
    let scratch = Scratch::new();
    for runtime in [Runtime::Containerd, Runtime::Crio, Runtime::Rke2] {
        assert_eq!(folders(&scratch, runtime), pair("/opt/cni/bin", "/etc/cni/net.d"), "{runtime:?}");
    }
    assert!(Runtime::ALL.iter().all(|runtime| !runtime.is_on(&scratch.root())));
}

#[test]
fn containerd_says_it_in_every_schema() {
    let rows = [
        ("[plugins.cri.cni]\nbin_dir = '/a'\nconf_dir = '/b'", pair("/a", "/b")),
        ("version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/a'", pair("/a", "/etc/cni/net.d")),
        ("version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = '/a'\nconf_dir = '/b'", pair("/a", "/b")),
        (
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = ''\nbin_dirs = ['/a', '/c']\nconf_dir = '/b'",
            pair("/a:/c", "/b"),
        ),
        ("version = 2", pair("/opt/cni/bin", "/etc/cni/net.d")),
    ];
    for (text, wanted) in rows {
        let scratch = Scratch::new();
        scratch.write("/etc/containerd/config.toml", text);
        assert!(Runtime::Containerd.is_on(&scratch.root()));
        assert_eq!(folders(&scratch, Runtime::Containerd), wanted, "{text}");
    }
}

#[test]
fn imports_of_containerd_count_as_they_do_in_its_version() {
    let main = |version: u32, name: &str| {
        format!("version = {version}\nimports = ['conf.d/*.toml', '/etc/containerd/config.toml']\n[plugins.'{name}'.cni]\nbin_dir = '/a'\nconf_dir = '/b'")
    };
    let import = |name: &str| format!("[plugins.'{name}'.cni]\nconf_dir = '/c'");
    // Before 2.0 the import's table replaces the whole table; since 2.0 it is merged.
    for (version, name, wanted) in [
        (2, "io.containerd.grpc.v1.cri", pair("/opt/cni/bin", "/c")),
        (3, "io.containerd.cri.v1.runtime", pair("/a", "/c")),
    ] {
        let scratch = Scratch::new();
        scratch.write("/etc/containerd/config.toml", &main(version, name));
        scratch.write("/etc/containerd/conf.d/10-cni.toml", &import(name));
        scratch.write("/etc/containerd/conf.d/10-cni.toml.bak", "not toml");
        assert_eq!(folders(&scratch, Runtime::Containerd), wanted, "schema {version}");
    }
}

#[test]
fn the_number_of_networks_that_containerd_reads_is_in_the_layout() {
    let scratch = Scratch::new();
    let read = |max: u32| {
        scratch.write("/etc/containerd/config.toml", &format!("[plugins.cri.cni]\nmax_conf_num = {max}"));
        Runtime::Containerd.layout(&scratch.root()).unwrap().unwrap().selection
    };
    assert_eq!(read(1), Selection::First(1));
    assert_eq!(read(2), Selection::First(2));
    assert_eq!(read(0), Selection::First(usize::MAX));
}

#[test]
fn a_containerd_that_kubelet_cannot_use_is_reported() {
    let scratch = Scratch::new();
    scratch.write("/etc/containerd/config.toml", "disabled_plugins = ['cri']");
    let layout = Runtime::Containerd.layout(&scratch.root()).unwrap().unwrap();
    assert!(layout.notes[0].contains("disabled_plugins"), "{:?}", layout.notes);
}

#[test]
fn an_invalid_config_is_an_error_with_its_path() {
    let scratch = Scratch::new();
    scratch.write("/etc/containerd/config.toml", "version = ");
    let error = Runtime::Containerd.layout(&scratch.root()).unwrap_err().to_string();
    assert!(error.contains("/etc/containerd/config.toml: "), "{error}");
}

#[test]
fn later_files_of_crio_win() {
    let scratch = Scratch::new();
    scratch.write("/etc/crio/crio.conf", "[crio.network]\nnetwork_dir = '/a/'\nplugin_dirs = ['/b/', '/c']");
    assert_eq!(folders(&scratch, Runtime::Crio), pair("/b/:/c", "/a/"));
    scratch.write(
        "/etc/crio/crio.conf.d/20-x.conf",
        "[crio.network]\ncni_default_network = 'multus'\nplugin_dirs = ['/e']",
    );
    scratch.write("/etc/crio/crio.conf.d/10-x.conf", "[crio.network]\nplugin_dirs = ['/d']");
    assert_eq!(folders(&scratch, Runtime::Crio), pair("/e", "/a/"));
    let layout = Runtime::Crio.layout(&scratch.root()).unwrap().unwrap();
    assert_eq!(layout.selection, Selection::Named("multus".into()));
    assert_eq!(layout.config.as_deref(), Some(Path::new("/etc/crio/crio.conf.d/20-x.conf")));
}

#[test]
fn podman_counts_only_where_its_backend_is_cni() {
    let scratch = Scratch::new();
    let usual = "/usr/local/libexec/cni:/usr/libexec/cni:/usr/local/lib/cni:/usr/lib/cni:/opt/cni/bin";
    assert_eq!(folders(&scratch, Runtime::Podman), pair(usual, "/etc/cni/net.d"));
    scratch.write("/usr/lib/podman/netavark", "");
    assert_eq!(Runtime::Podman.layout(&scratch.root()).unwrap(), None);
    scratch.write("/var/lib/containers/storage/defaultNetworkBackend", "cni");
    assert_eq!(folders(&scratch, Runtime::Podman).0, usual);
    scratch.write("/etc/containers/containers.conf", "[network]\nnetwork_backend = 'netavark'");
    assert_eq!(Runtime::Podman.layout(&scratch.root()).unwrap(), None);
    let last = "[network]\nnetwork_backend = 'cni'\ncni_plugin_dirs = ['/a']\nnetwork_config_dir = '/b'";
    scratch.write("/etc/containers/containers.conf.d/50-x.conf", last);
    assert_eq!(folders(&scratch, Runtime::Podman), pair("/a", "/b"));
}

#[test]
fn k3s_says_it_in_the_config_of_its_containerd() {
    let scratch = Scratch::new();
    let text = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/var/lib/rancher/k3s/data/cni']\nconf_dir = '/var/lib/rancher/k3s/agent/etc/cni/net.d'";
    scratch.write("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", text);
    assert!(Runtime::K3s.is_on(&scratch.root()));
    let wanted = pair("/var/lib/rancher/k3s/data/cni", "/var/lib/rancher/k3s/agent/etc/cni/net.d");
    assert_eq!(folders(&scratch, Runtime::K3s), wanted);
    // Without its flannel it says nothing, and containerd's usual folders count.
    scratch.write("/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "version = 3");
    assert_eq!(folders(&scratch, Runtime::K3s), pair("/opt/cni/bin", "/etc/cni/net.d"));
}

#[test]
fn a_k3s_that_never_ran_or_lives_elsewhere_is_found_too() {
    let scratch = Scratch::new();
    scratch.write("/etc/rancher/k3s/config.yaml", "token: x\ndata-dir: \"/srv/k3s\"\n");
    scratch.write("/srv/k3s/data/current/bin/cni", "");
    let layout = Runtime::K3s.layout(&scratch.root()).unwrap().unwrap();
    assert_eq!(layout.bin_dirs, [PathBuf::from("/srv/k3s/data/current/bin")]);
    assert_eq!(layout.conf_dir, Path::new("/srv/k3s/agent/etc/cni/net.d"));
    assert_eq!(layout.notes.len(), 2, "{:?}", layout.notes);
}

#[test]
fn microk8s_lives_below_its_snap() {
    let scratch = Scratch::new();
    let wanted =
        pair("/var/snap/microk8s/current/opt/cni/bin", "/var/snap/microk8s/current/args/cni-network");
    assert_eq!(folders(&scratch, Runtime::Microk8s), wanted);
    let text = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '${SNAP_DATA}/opt/cni/bin'\nconf_dir = '${SNAP_DATA}/args/cni-network'";
    scratch.write("/var/snap/microk8s/current/args/containerd.toml", text);
    assert_eq!(folders(&scratch, Runtime::Microk8s), wanted);
}
