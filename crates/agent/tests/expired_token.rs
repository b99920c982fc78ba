//! The block allocator on a real kube-apiserver, with a kubeconfig whose token has expired: ADD fails with "try again",
//! DEL succeeds, and with a new token in the same file everything is made up for. Skipped without Kubernetes' programs.

use std::time::Duration;

use podwire_agent::calico::allocator::{BlockAllocator, Settings};
use podwire_agent_ipc::addresses::AddressRequest;
use podwire_agent_ipc::Owner;
use podwire_block_ipam::store::Store;
use podwire_block_ipam::timestamp::Timestamp;
use podwire_block_ipam::{Allocator, Ownership, Pool};
use podwire_store_kubernetes::{ApiGroup, KubernetesStore};
use podwire_test_servers::{kubernetes_programs, KubeApiServer};

#[test]
fn an_expired_token_delays_pods_until_it_is_replaced() {
    let programs = match kubernetes_programs(&[]) {
        Ok(programs) => programs,
        Err(why) => return eprintln!("left out: {why}"),
    };
    let server = KubeApiServer::start(&programs);
    server.grant_ipam_rights();
    server.define_calico_resources(&ApiGroup::V1.to_string());
    let valid = server.kubeconfig("podwire");
    server.until("the resources are served", || {
        KubernetesStore::connect(Some(&valid), Some(ApiGroup::V1)).is_ok_and(|store| store.list("").is_ok())
    });
    let store = KubernetesStore::connect(Some(&valid), Some(ApiGroup::V1)).unwrap();
    let allocator = Allocator::new(&store, Timestamp::now);
    allocator.add_pool(&Pool::new("pods", "10.244.0.0/24".parse().unwrap())).unwrap();
    let text = std::fs::read_to_string(&valid).unwrap();
    let dir = std::env::temp_dir().join(format!("podwire-token-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let kubeconfig = dir.join("kubeconfig");
    std::fs::write(&kubeconfig, text.replace(r#""token":"podwire""#, r#""token":"expired""#)).unwrap();
    let file = kubeconfig.clone();
    let opener = move || {
        let store = KubernetesStore::connect(Some(&file), Some(ApiGroup::V1))?;
        Ok(Box::new(store) as Box<dyn Store>)
    };
    let settings = Settings { node: "node1".into(), warm_addresses: 2, claim: Ownership::DURATION };
    let agent = BlockAllocator::start(settings, &dir.join("state"), Box::new(opener)).unwrap();
    let request = AddressRequest { ipv4_pools: Some(Vec::new()), ..AddressRequest::default() };
    let pod =
        |container: &str| Owner { network: "net".into(), container: container.into(), ifname: "eth0".into() };
    server.until("the error has the server's reason", || {
        let error = agent.assign(&pod("a"), &request, Duration::from_millis(300)).unwrap_err();
        assert_eq!(error.code(), 11, "{error}");
        error.to_string().contains("Unauthorized")
    });
    agent.release(&pod("a"), None).unwrap();
    std::fs::write(&kubeconfig, &text).unwrap();
    let assigned = agent.assign(&pod("b"), &request, Duration::from_secs(60)).unwrap();
    let held = || allocator.addresses_of("net.b");
    server.until("the store has the address", || held() == Ok(vec![assigned[0].addr()]));
    agent.release(&pod("b"), None).unwrap();
    server.until("the store has released it", || held() == Ok(vec![]) && agent.status().warm_pool > 0);
    let _ = std::fs::remove_dir_all(&dir);
}
