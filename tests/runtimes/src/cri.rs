//! A client of the container runtime interface of Kubernetes. Like kubelet it makes one call after the other.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::*;
use serde_json::Value;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

/// The timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A connection to a container runtime.
#[derive(Debug)]
pub struct Cri {
    client: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    runtime: Runtime,
}

/// The configuration of a pod.
#[derive(Clone, Debug)]
pub struct PodSpec {
    config: PodSandboxConfig,
}

/// A running pod.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// The runtime's id of the pod, which is the plugins' container id.
    pub id: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// The path of its network namespace.
    pub netns: String,
}

/// A container in a pod.
#[derive(Clone, Debug)]
pub struct Container {
    /// The runtime's id of the container.
    pub id: String,
}

/// The outcome of a command in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Its exit status.
    pub status: i32,
    /// Its standard output, and its standard error.
    pub printed: String,
}

impl PodSpec {
    /// A pod with this name.
    pub fn named(name: &str) -> PodSpec {
        let metadata = PodSandboxMetadata {
            name: name.into(),
            uid: format!("uid-{name}"),
            namespace: "default".into(),
            attempt: 0,
        };
        let config = PodSandboxConfig {
            metadata: Some(metadata),
            hostname: name.into(),
            log_directory: "/var/log/pods".into(),
            linux: Some(LinuxPodSandboxConfig::default()),
            ..PodSandboxConfig::default()
        };
        PodSpec { config }
    }

    /// Adds a host port that maps to a TCP port of the pod.
    pub fn port(mut self, host: u16, pod: u16) -> PodSpec {
        let mapping = PortMapping {
            protocol: Protocol::Tcp.into(),
            container_port: pod.into(),
            host_port: host.into(),
            host_ip: String::new(),
        };
        self.config.port_mappings.push(mapping);
        self
    }

    /// Adds an annotation, such as those for bandwidth.
    pub fn annotation(mut self, key: &str, value: &str) -> PodSpec {
        self.config.annotations.insert(key.into(), value.into());
        self
    }

    /// Sets the content of the containers' `/etc/resolv.conf`.
    pub fn dns(mut self, servers: &[&str], searches: &[&str], options: &[&str]) -> PodSpec {
        let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let dns = DnsConfig { servers: list(servers), searches: list(searches), options: list(options) };
        self.config.dns_config = Some(dns);
        self
    }
}

impl Cri {
    /// Connects to the socket.
    pub fn connect(socket: &Path) -> Cri {
        let mut building = tokio::runtime::Builder::new_current_thread();
        let runtime = building.enable_all().build().expect("tokio");
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).expect("a path");
        let channel = runtime.block_on(endpoint.timeout(TIMEOUT).connect());
        let channel = channel.unwrap_or_else(|error| panic!("{}: {error:?}", socket.display()));
        Cri {
            client: RuntimeServiceClient::new(channel.clone()),
            images: ImageServiceClient::new(channel),
            runtime,
        }
    }

    /// Waits until the runtime has loaded its state: before that it accepts connections and fails every call.
    pub(crate) fn wait(&mut self) {
        let end = Instant::now() + TIMEOUT;
        while let Err(error) = self.runtime.block_on(self.client.status(StatusRequest { verbose: false })) {
            assert!(Instant::now() < end, "Status: {error}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts a pod. The error is the runtime's.
    pub fn try_run(&mut self, spec: &PodSpec) -> Result<Sandbox, String> {
        let request =
            RunPodSandboxRequest { config: Some(spec.config.clone()), runtime_handler: String::new() };
        let answer = self.runtime.block_on(self.client.run_pod_sandbox(request));
        let id = answer.map_err(|status| status.message().to_owned())?.into_inner().pod_sandbox_id;
        Ok(self.sandbox(&id))
    }

    /// Starts a pod; panics if that fails.
    #[track_caller]
    pub fn run(&mut self, spec: &PodSpec) -> Sandbox {
        self.try_run(spec).unwrap_or_else(|error| panic!("RunPodSandbox: {error}"))
    }

    /// The state of a started pod.
    pub fn sandbox(&mut self, id: &str) -> Sandbox {
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: true };
        let answer = self.runtime.block_on(self.client.pod_sandbox_status(request));
        let answer = answer.unwrap_or_else(|error| panic!("PodSandboxStatus: {error}")).into_inner();
        let network = answer.status.and_then(|status| status.network).unwrap_or_default();
        let addresses =
            [network.ip].into_iter().chain(network.additional_ips.into_iter().map(|other| other.ip));
        let details = answer.info.get("info").map_or("{}", String::as_str);
        let details: Value = serde_json::from_str(details).expect("JSON");
        let namespaces =
            details["runtimeSpec"]["linux"]["namespaces"].as_array().cloned().unwrap_or_default();
        let network = namespaces.iter().find(|one| one["type"] == "network");
        let netns = network.and_then(|one| one["path"].as_str()).unwrap_or_default().to_owned();
        Sandbox { id: id.into(), addresses: addresses.filter(|one| !one.is_empty()).collect(), netns }
    }

    /// All pods of the runtime, running or not.
    pub fn list(&mut self) -> Vec<String> {
        let answer =
            self.runtime.block_on(self.client.list_pod_sandbox(ListPodSandboxRequest { filter: None }));
        let answer = answer.unwrap_or_else(|error| panic!("ListPodSandbox: {error}")).into_inner();
        answer.items.into_iter().map(|pod| pod.id).collect()
    }

    /// Stops a pod: its containers end, its network is detached. The error is the runtime's.
    pub fn try_stop(&mut self, id: &str) -> Result<(), String> {
        let request = StopPodSandboxRequest { pod_sandbox_id: id.into() };
        let answer = self.runtime.block_on(self.client.stop_pod_sandbox(request));
        answer.map(drop).map_err(|status| status.message().to_owned())
    }

    /// Stops a pod and removes it.
    #[track_caller]
    pub fn remove(&mut self, id: &str) {
        self.try_stop(id).unwrap_or_else(|error| panic!("StopPodSandbox: {error}"));
        let request = RemovePodSandboxRequest { pod_sandbox_id: id.into() };
        let answer = self.runtime.block_on(self.client.remove_pod_sandbox(request));
        answer.unwrap_or_else(|error| panic!("RemovePodSandbox: {error}"));
    }

    /// Starts a container in a pod with this command.
    #[track_caller]
    pub fn container(&mut self, pod: &Sandbox, spec: &PodSpec, words: &[&str]) -> Container {
        self.try_container(pod, spec, crate::image::BOX, words).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a container of this image. The error is the runtime's.
    pub fn try_container(
        &mut self,
        pod: &Sandbox,
        spec: &PodSpec,
        image: &str,
        words: &[&str],
    ) -> Result<Container, String> {
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: "main".into(), attempt: 0 }),
            image: Some(ImageSpec { image: image.into(), ..ImageSpec::default() }),
            command: words.iter().map(|word| (*word).to_owned()).collect(),
            log_path: "main.log".into(),
            linux: Some(LinuxContainerConfig::default()),
            ..ContainerConfig::default()
        };
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.id.clone(),
            config: Some(config),
            sandbox_config: Some(spec.config.clone()),
        };
        let created = self.runtime.block_on(self.client.create_container(request));
        let created = created.map_err(|status| format!("CreateContainer: {}", status.message()))?;
        let id = created.into_inner().container_id;
        let request = StartContainerRequest { container_id: id.clone() };
        let started = self.runtime.block_on(self.client.start_container(request));
        started.map_err(|status| format!("StartContainer: {}", status.message()))?;
        Ok(Container { id })
    }

    /// Pulls an image. The error is the runtime's.
    pub fn try_pull(&mut self, image: &str) -> Result<(), String> {
        let image = Some(ImageSpec { image: image.into(), ..ImageSpec::default() });
        let request = PullImageRequest { image, ..PullImageRequest::default() };
        let answer = self.runtime.block_on(self.images.pull_image(request));
        answer.map(drop).map_err(|status| status.message().to_owned())
    }

    /// Runs a shell script in a container.
    pub fn exec(&mut self, container: &Container, script: &str) -> Executed {
        let request = ExecSyncRequest {
            container_id: container.id.clone(),
            cmd: ["sh", "-c", script].map(String::from).to_vec(),
            timeout: 30,
        };
        let answer = self.runtime.block_on(self.client.exec_sync(request));
        let answer = answer.unwrap_or_else(|error| panic!("ExecSync {script}: {error}")).into_inner();
        let printed = String::from_utf8_lossy(&answer.stdout) + String::from_utf8_lossy(&answer.stderr);
        Executed { status: answer.exit_code, printed: printed.into_owned() }
    }

    /// Runs a shell script in a container and returns what it prints; panics if it fails.
    #[track_caller]
    pub fn sh(&mut self, container: &Container, script: &str) -> String {
        let Executed { status, printed } = self.exec(container, script);
        assert_eq!(status, 0, "{script}: {printed}");
        printed
    }

    /// The conditions of the runtime's status: the value of each, and the reason.
    pub fn conditions(&mut self) -> HashMap<String, (bool, String)> {
        let answer = self.runtime.block_on(self.client.status(StatusRequest { verbose: false }));
        let answer = answer.unwrap_or_else(|error| panic!("Status: {error}")).into_inner();
        let all = answer.status.unwrap_or_default().conditions;
        all.into_iter().map(|one| (one.r#type, (one.status, one.message))).collect()
    }
}
