//! Asking for a pod's policies before its runtime is answered.
//!
//! A network whose config says `"policy": {"type": "k8s"}` has its pods kept apart by the node's agent. A plugin that has
//! attached a pod knocks at the agent's door and waits until the rules for the pod stand: what the pod sends or
//! receives first is judged already. One line of JSON goes in, one comes back.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::net::SocketAddr;
use std::time::Duration;

use podwire_cni_spec::{json, Args, Attachment};
use podwire_kernel::Undo;
use podwire_netlink::sys;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Request, Result};

/// Where the agent is asked.
pub const DOOR: &str = "/run/podwire/policy.sock";
/// How long an ADD waits, if its config does not say.
const PATIENCE: u64 = 10;
/// A DEL waits until it was heard, and for nothing else; nobody who is well needs longer for that.
const FAREWELL: Duration = Duration::from_secs(1);

/// What is said at the door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "lowercase")]
pub enum Knock {
    /// The interface was attached: are its policies enforced?
    Attach {
        /// The interface.
        #[serde(flatten)]
        interface: Interface,
        /// How many milliseconds the answer may take.
        patience: u64,
    },
    /// The interface is gone.
    Detach {
        /// The interface; its addresses do not matter.
        #[serde(flatten)]
        interface: Interface,
    },
}

/// A pod's interface, and the pod in its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// The network's name.
    pub network: String,
    /// The container's id.
    pub container: String,
    /// The interface's name in the pod.
    pub ifname: String,
    /// The pod's namespace in the cluster.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Networks of which a pod may claim to send with addresses in them; as the network's config says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claimable: Vec<String>,
    /// The node's end of its cable, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<Port>,
}

/// The node's end of a pod's cable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The device.
    pub name: String,
    /// Whether it is a port of a bridge.
    pub bridged: bool,
    /// The hardware address of the pod's end.
    pub mac: String,
}

impl Port {
    /// As bridge and ptp tell it: the bridge if there is one, the node's end, the pod's end.
    pub fn of(made: &Attachment, ifname: &str) -> Option<Port> {
        let inside = made.interfaces.iter().position(|one| !one.sandbox.is_empty() && one.name == ifname)?;
        let outside = inside.checked_sub(1)?;
        Some(Port {
            name: made.interfaces[outside].name.clone(),
            bridged: outside > 0,
            mac: made.interfaces[inside].mac.clone(),
        })
    }
}

impl Interface {
    /// The interface that a request is about, with what came of it.
    pub fn of(req: &Request<'_>, made: Option<&Attachment>) -> Interface {
        let (namespace, pod) = pod_of(&req.args, &req.container);
        Interface {
            network: req.network.to_string(),
            container: req.container.clone(),
            ifname: req.ifname.clone(),
            namespace,
            pod,
            // An ADD was refused if they make no sense.
            claimable: claimable(&req.config).unwrap_or_default(),
            addresses: made.iter().flat_map(|made| &made.ips).map(|ip| ip.address.addr()).collect(),
            port: made.and_then(|made| Port::of(made, &req.ifname)),
        }
    }

    /// What tells interfaces apart.
    pub fn key(&self) -> (String, String, String) {
        (self.network.clone(), self.container.clone(), self.ifname.clone())
    }

    /// `namespace/pod`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.pod)
    }
}

/// What is said back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the pod's policies are enforced.
    pub enforced: bool,
    /// Why they are not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// The namespace and the name of the pod that `CNI_ARGS` tell of. A runtime that knows no pods has containers.
pub fn pod_of(args: &Args, container: &str) -> (String, String) {
    let told = |key: &str| args.get(key).filter(|value| !value.is_empty()).map(str::to_owned);
    (
        told("K8S_POD_NAMESPACE").unwrap_or_else(|| "default".into()),
        told("K8S_POD_NAME").unwrap_or_else(|| container.into()),
    )
}

/// The networks that pods may claim addresses of (`policy.allowedSourcePrefixes`). Whoever may write pods can claim, so it is for the
/// network's administrator to say what.
pub fn claimable(config: &Value) -> Result<Vec<String>> {
    let written = json::get(config, "policy").and_then(|policy| json::get(policy, "allowedSourcePrefixes"));
    let wrong = |value: &Value| {
        let text =
            format!("policy.allowedSourcePrefixes: {value} is no list of networks such as \"10.8.0.0/16\"");
        podwire_cni_spec::Error::invalid_config(text)
    };
    let Some(written) = written else { return Ok(Vec::new()) };
    let network = |value: &Value| match value.as_str().map(podwire_cni_spec::addr::parse_net) {
        Some(Ok(network)) => Ok(network.to_string()),
        _ => Err(wrong(value).into()),
    };
    written.as_array().ok_or_else(|| wrong(written))?.iter().map(network).collect()
}

/// What a network's config says under `policy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    door: String,
    patience: Duration,
    /// Whether the pod may come although its policies do not stand yet: it is silent until they do.
    goes_on: bool,
}

impl Policy {
    /// Reads it; `None` if the network has no policies, or those of somebody else.
    pub fn read(req: &Request<'_>) -> Result<Option<Policy>> {
        let Some(written) = json::get(&req.config, "policy") else { return Ok(None) };
        let text = |key: &str| json::get(written, key).and_then(Value::as_str);
        if text("type") != Some("k8s") {
            return Ok(None);
        }
        claimable(&req.config)?;
        let seconds = match json::get(written, "timeout") {
            None => PATIENCE,
            Some(value) => value.as_u64().filter(|seconds| (1..=300).contains(seconds)).ok_or_else(|| {
                podwire_cni_spec::Error::invalid_config(format!(
                    "policy.timeout: {value} is no number of seconds from 1 to 300"
                ))
            })?,
        };
        let goes_on = match text("otherwise") {
            None | Some("fail") => false,
            Some("go-on") => true,
            Some(other) => {
                let text = format!("policy.otherwise: {other:?} is neither \"fail\" nor \"go-on\"");
                return Err(podwire_cni_spec::Error::invalid_config(text).into());
            }
        };
        let door = text("socket").unwrap_or(DOOR).into();
        Ok(Some(Policy { door, patience: Duration::from_secs(seconds), goes_on }))
    }

    /// Whether anybody has opened the door since the machine was started. If not, whoever else keeps pods apart does not answer here.
    pub fn is_somebody_there(&self) -> bool {
        std::path::Path::new(&self.door).exists()
    }

    /// Returns when the policies of what was made are enforced.
    pub fn await_enforcement(&self, req: &Request<'_>, made: &Attachment) -> Result<()> {
        let interface = Interface::of(req, Some(made));
        let pod = interface.full_name();
        let patience = u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX);
        let why = match self.ask(&Knock::Attach { interface, patience }) {
            Ok(answer) if answer.enforced => return Ok(()),
            Ok(answer) => answer.why,
            Err(error) => format!("ask {}: {error}", self.door),
        };
        if self.goes_on {
            return Ok(());
        }
        let text = format!("the policies of pod {pod} are not enforced: {why}");
        let hint = "see that `podwire agent` runs with --policy; or let pods come all the same, silent until their policies stand, \
                    with \"otherwise\": \"go-on\" in the network's policy";
        Err(podwire_cni_spec::Error::new(podwire_cni_spec::error::code::TRY_AGAIN, text)
            .with_details(hint)
            .into())
    }

    fn ask(&self, knock: &Knock) -> std::io::Result<Answer> {
        let mut stream = sys::connect_unix(&SocketAddr::from_pathname(&self.door)?, self.patience)?;
        // The one who answers keeps the time; this is for one who does not.
        stream.set_read_timeout(Some(self.patience + Duration::from_secs(1)))?;
        stream.write_all(&line(knock)?)?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        serde_json::from_str(&answer).map_err(|error| {
            std::io::Error::new(ErrorKind::InvalidData, format!("an answer that makes no sense: {error}"))
        })
    }
}

/// Waits until the policies of what is being made are enforced, while the pod cannot speak yet: its end of the cable is down. What is not
/// finished after that is told to be gone.
pub fn stand<'a>(
    policy: Option<Policy>,
    req: &'a Request<'a>,
    made: &Attachment,
    undo: &mut Undo<'a>,
) -> Result<()> {
    let Some(policy) = policy else { return Ok(()) };
    undo.push(|| farewell(req));
    policy.await_enforcement(req, made)
}

/// Says that the interface is gone, if its network has policies, and waits until that was heard: a container that is started again has
/// the same id, and what is said of its new interface must come after it. An agent that is away reads the ledger when it is back.
pub fn farewell(req: &Request<'_>) {
    let Ok(Some(policy)) = Policy::read(req) else { return };
    let policy = Policy { patience: FAREWELL, ..policy };
    let _ = policy.ask(&Knock::Detach { interface: Interface::of(req, None) });
}

/// Whether somebody is there to enforce the network's policies, if it has any.
pub fn status(req: &Request<'_>) -> Result<()> {
    let Some(policy) = Policy::read(req)? else { return Ok(()) };
    let door = SocketAddr::from_pathname(&policy.door);
    match door.and_then(|door| sys::connect_unix(&door, policy.patience)) {
        Ok(_) => Ok(()),
        Err(error) => {
            let text = format!("nobody enforces the network's policies: connect to {}: {error}", policy.door);
            let hint = "start `podwire agent` with --policy";
            Err(podwire_cni_spec::Error::new(podwire_cni_spec::error::code::NOT_AVAILABLE, text)
                .with_details(hint)
                .into())
        }
    }
}

fn line(knock: &Knock) -> std::io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(knock)?;
    text.push(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_knock_reads_as_it_was_said() {
        let interface = Interface {
            pod: "web".into(),
            addresses: vec!["10.1.0.2".parse().unwrap()],
            ..Interface::default()
        };
        let knock = Knock::Attach { interface, patience: 10_000 };
        let text = String::from_utf8(line(&knock).unwrap()).unwrap();
        assert!(text.starts_with(r#"{"verb":"attach","network":"""#), "{text}");
        assert_eq!(serde_json::from_str::<Knock>(&text).unwrap(), knock);
    }

    /// Podman starts a container again under its id: what is said of the new interface must not be overtaken by the old one's end.
    #[test]
    fn a_farewell_was_heard_when_it_returns() {
        let path = std::env::temp_dir().join(format!("podwire-farewell-{}", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let config = serde_json::json!({
            "cniVersion": "1.1.0", "name": "pods", "type": "bridge", "policy": {"type": "k8s", "socket": path},
        });
        let source =
            crate::Source { container: "c1".into(), ifname: "eth0".into(), ..crate::Source::default() };
        let req = Request::new(crate::Command::Del, &source, config, crate::Registry::none()).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let (mut visitor, _) = listener.accept().unwrap();
                let mut said = String::new();
                BufReader::new(&visitor).read_line(&mut said).unwrap();
                let knock = serde_json::from_str::<Knock>(&said).unwrap();
                assert!(matches!(knock, Knock::Detach { interface } if interface.container == "c1"));
                visitor.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                let waits = visitor.read(&mut [0]).is_err();
                visitor.write_all(b"{\"enforced\":true}\n").unwrap();
                waits
            });
            farewell(&req);
            assert!(waits.join().unwrap(), "it left before it was answered");
        });
        std::fs::remove_file(&path).unwrap();
        // Nobody is there: that keeps no DEL.
        farewell(&req);
    }

    #[test]
    fn a_container_without_a_pod_is_its_own() {
        let args = Args::parse("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web").unwrap();
        assert_eq!(pod_of(&args, "c1"), ("shop".into(), "web".into()));
        assert_eq!(pod_of(&Args::default(), "c1"), ("default".into(), "c1".into()));
    }
}
