//! Pods get addresses and give them back.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use podwire_agent_ipc::blocks::Wish;
use podwire_agent_ipc::{notes, Owner};
use podwire_block_ipam::store::Store;
use podwire_block_ipam::{Allocator, Pool, Rules};
use podwire_steward::{Error, Settings, Steward};

use crate::stage::{eventually, now, owner, pool, settled, v4, Cluster, Mood, Shared, PATIENCE};

/// The plugin notes the end of an attachment by itself where the agent does not answer. What it had is given back, and to nobody before.
#[test]
fn whoever_was_noted_as_gone_gets_another_address_when_it_comes_back() {
    let cluster = Cluster::new("noted", pool());
    let (steward, state) = (cluster.steward("node1"), cluster.state("node1"));
    let first = steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap();
    eventually("it is told", || settled(&steward, &state));
    podwire_agent_ipc::blocks::leave(&state, &owner("c1")).unwrap();
    let second = steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap();
    assert_ne!(first, second);
    let held = [("net.c1".to_owned(), second[0].addr())].into();
    eventually("the first is given back", || settled(&steward, &state) && cluster.held() == held);
    cluster.assert_sound();
}

/// A machine that loses its power may keep a file's name and nothing of what is in it.
#[test]
fn a_lease_of_which_nothing_is_left_but_its_name_is_given_back_by_its_handle() {
    let cluster = Cluster::new("empty", pool());
    let state = cluster.state("node1");
    std::fs::create_dir_all(notes::leases(&state)).unwrap();
    std::fs::write(notes::leases(&state).join(notes::file_name(&owner("c1"))), "").unwrap();
    let rules = Rules::load(&cluster.store).unwrap();
    let request =
        podwire_block_ipam::Request::new(podwire_block_ipam::AffinityOwner::host("node1"), "net.c1");
    let allocator = Allocator::new(&cluster.store, now);
    allocator.assign_address(&rules, &request, "10.244.0.1".parse().unwrap()).unwrap();
    let steward = cluster.steward("node1");
    steward.release(&owner("c1"), None).unwrap();
    eventually("it is given back", || settled(&steward, &state) && cluster.held().is_empty());
    cluster.assert_sound();
}

#[test]
fn a_pod_gets_its_address_at_once_and_the_store_hears_of_it() {
    let cluster = Cluster::new("warm", pool());
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    let given = steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap();
    assert_eq!(given.len(), 1);
    assert_eq!(given[0].prefix_len(), 28);
    assert_eq!(steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap(), given, "who asks again gets the same");
    eventually("the store knows", || cluster.held() == [("net.c1".to_owned(), given[0].addr())].into());
    let block = Allocator::new(&cluster.store, now).blocks().unwrap().remove(0).unwrap();
    let known = block.allocation(given[0].addr()).unwrap().attribute.secondary.clone();
    assert_eq!(
        (known["namespace"].as_str(), known["pod"].as_str(), known["node"].as_str()),
        ("shop", "web", "node1")
    );
    assert!(known.contains_key("timestamp"), "{known:?}");
    cluster.assert_sound();
    steward.release(&owner("c1"), Some("shop.web")).unwrap();
    eventually("it is free", || cluster.held().is_empty() && settled(&steward, &cluster.state("node1")));
    cluster.assert_sound();
}

#[test]
fn a_warm_add_and_a_del_ask_the_store_nothing() {
    let cluster = Cluster::new("zero", pool());
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    eventually("the clerk rests", || {
        let before = cluster.store.asked();
        std::thread::sleep(Duration::from_millis(50));
        cluster.store.asked() == before
    });
    cluster.store.set(Mood::Away);
    let one = steward.assign(&owner("c1"), &v4(), Duration::ZERO).unwrap();
    let other = steward.assign(&owner("c2"), &v4(), Duration::ZERO).unwrap();
    assert_ne!(one, other);
    steward.release(&owner("c1"), None).unwrap();
    cluster.store.set(Mood::Well);
    eventually("the store has caught up", || {
        cluster.held() == [("net.c2".to_owned(), other[0].addr())].into()
    });
}

#[test]
fn with_the_store_away_and_nothing_in_stock_an_add_is_told_to_come_again() {
    let cluster = Cluster::new("away", pool());
    cluster.store.set(Mood::Away);
    let steward = cluster.steward("node1");
    eventually("the clerk has noticed", || steward.state().trouble.is_some());
    let error = steward.assign(&owner("c1"), &v4(), Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.code(), 11, "{error}");
    assert!(error.to_string().contains("it is away"), "{error}");
    eventually("it is not ready", || steward.is_ready().is_err());
    steward.release(&owner("c1"), None).unwrap();
    cluster.store.set(Mood::Well);
    steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap();
    eventually("it is ready", || steward.is_ready().is_ok());
}

#[test]
fn an_agent_that_is_killed_finds_everything_again() {
    let cluster = Cluster::new("killed", pool());
    let state = cluster.state("node1");
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    cluster.store.set(Mood::Away);
    let kept = steward.assign(&owner("kept"), &v4(), PATIENCE).unwrap();
    steward.assign(&owner("gone"), &v4(), PATIENCE).unwrap();
    steward.release(&owner("gone"), None).unwrap();
    // Another life, elsewhere: the clerk of this one holds the lock until its process ends. The store hears no more of it.
    let copy = cluster.state("node1-again");
    copy_tree(&state, &copy);
    let store = Shared(Arc::default());
    for entry in cluster.store.0.store.lock().unwrap().list("").unwrap() {
        store.create(&entry.key, &entry.value).unwrap();
    }
    let cluster = Cluster { store: store.clone(), folder: cluster.folder.clone() };
    let settings = Settings { node: "node1".into(), stock: 4 };
    let again = Steward::start(settings, &copy, Box::new(move || Ok(Box::new(store.clone())))).unwrap();
    eventually("the store knows of the one", || {
        cluster.held() == [("net.kept".to_owned(), kept[0].addr())].into()
    });
    assert_eq!(again.lease(&owner("kept")).unwrap().addresses, kept);
    let mut seen: BTreeSet<_> = kept.iter().copied().collect();
    for number in 0..14 {
        let given = again.assign(&owner(&format!("c{number}")), &v4(), PATIENCE).unwrap();
        assert!(seen.insert(given[0]), "{given:?} was given twice");
    }
    eventually("all is told", || cluster.held().len() == 15);
    cluster.assert_sound();
}

fn copy_tree(from: &Path, to: &Path) {
    for folder in ["leases", "released"] {
        std::fs::create_dir_all(to.join(folder)).unwrap();
        for file in std::fs::read_dir(from.join(folder)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), to.join(folder).join(file.file_name())).unwrap();
        }
    }
}

#[test]
fn leases_of_an_earlier_boot_are_given_back() {
    let cluster = Cluster::new("boot", pool());
    let state = cluster.state("node1");
    std::fs::create_dir_all(notes::leases(&state)).unwrap();
    let lease = podwire_agent_ipc::blocks::Lease {
        owner: owner("old"),
        addresses: vec!["10.244.0.1/28".parse().unwrap()],
        boot: "another".into(),
        ..podwire_agent_ipc::blocks::Lease::default()
    };
    notes::write(&notes::leases(&state), &notes::file_name(&lease.owner), &lease).unwrap();
    let allocator = Allocator::new(&cluster.store, now);
    let rules = Rules::load(&cluster.store).unwrap();
    let request =
        podwire_block_ipam::Request::new(podwire_block_ipam::AffinityOwner::host("node1"), "net.old");
    allocator.assign_address(&rules, &request, "10.244.0.1".parse().unwrap()).unwrap();
    let steward = cluster.steward("node1");
    eventually("it is free", || cluster.held().is_empty() && settled(&steward, &state));
    assert_eq!(steward.state().leases, 0);
    cluster.assert_sound();
}

#[test]
fn answers_that_are_lost_leave_nothing_behind() {
    let cluster = Cluster::new("mute", pool());
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    for round in 0..6 {
        cluster.store.set(if round % 2 == 0 { Mood::Mute } else { Mood::Well });
        for number in 0..3 {
            let _ = steward.assign(&owner(&format!("c{round}-{number}")), &v4(), Duration::from_millis(200));
        }
        for number in 0..2 {
            steward.release(&owner(&format!("c{round}-{number}")), None).unwrap();
        }
    }
    cluster.store.set(Mood::Well);
    eventually("all is told", || settled(&steward, &cluster.state("node1")));
    let known: BTreeSet<_> = (0..6)
        .filter_map(|round| steward.lease(&owner(&format!("c{round}-2"))))
        .map(|lease| (format!("net.{}", lease.owner.container), lease.addresses[0].addr()))
        .collect();
    eventually("the store says the same", || cluster.held() == known);
}

#[test]
fn several_nodes_at_once_share_a_pool_and_borrow_without_a_double() {
    // Four blocks of four addresses for three nodes and thirteen pods.
    let pool = Pool::new("pods", "10.244.0.0/28".parse().unwrap()).with_block_size(30);
    let cluster = Cluster::new("crowd", pool);
    let stewards: Vec<Steward> = (1..4).map(|number| cluster.steward(&format!("node{number}"))).collect();
    let given = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (node, steward) in stewards.iter().enumerate() {
            let given = &given;
            scope.spawn(move || {
                for number in 0..4 {
                    let pod = owner(&format!("n{node}-{number}"));
                    let got = steward.assign(&pod, &v4(), PATIENCE).unwrap();
                    given.lock().unwrap().push(got[0].addr());
                }
            });
        }
    });
    let given = given.into_inner().unwrap();
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 12, "{given:?}");
    eventually("all is told", || cluster.held().len() == 12);
    let held: BTreeSet<IpAddr> = cluster.held().into_iter().map(|(_, ip)| ip).collect();
    assert_eq!(held, given.into_iter().collect());
    cluster.assert_sound();
}

#[test]
fn wishes_that_cannot_be_granted_are_told_why() {
    let cluster = Cluster::new("wishes", pool());
    let steward = cluster.steward("node1");
    let ask = |container: &str, wish: Wish| steward.assign(&owner(container), &wish, PATIENCE);
    let pools = |names: &[&str]| Wish { v4: Some(names.iter().map(ToString::to_string).collect()), ..v4() };
    let this = |ip: &str| Wish { ips: vec![ip.parse().unwrap()], ..v4() };
    let error = ask("a", pools(&["none"])).unwrap_err();
    assert!(matches!(&error, Error::Blocks(_)) && error.to_string().contains("none"), "{error}");
    assert_eq!(error.code(), 7);
    let error = ask("b", this("192.0.2.1")).unwrap_err();
    assert!(error.to_string().contains("192.0.2.1 is not in an enabled IP pool"), "{error}");
    let error = ask("c", Wish { v4: None, v6: Some(Vec::new()), ..v4() }).unwrap_err();
    assert!(error.to_string().contains("IPv6"), "{error}");
    assert_eq!(ask("d", this("10.244.0.77")).unwrap(), ["10.244.0.77/28".parse().unwrap()]);
    let other = Wish { pod: "other".into(), ..this("10.244.0.77") };
    let error = ask("e", other).unwrap_err();
    assert!(error.to_string().contains("belongs to"), "{error}");
    assert_eq!(ask("f", pools(&["pods"])).unwrap().len(), 1);
}

/// One pod's handle is damaged, before the store has heard of the pod or after: it alone keeps its address, until somebody mends it.
#[test]
fn a_handle_that_makes_no_sense_is_told_and_keeps_nobody_else_from_going() {
    let cluster = Cluster::new("handle", pool());
    let (steward, state) = (cluster.steward("node1"), cluster.state("node1"));
    eventually("a stock", || steward.state().stock == 4);
    let damage = |container: &str| {
        let key = format!("/calico/ipam/v2/handle/net.{container}");
        let there = cluster.store.get(&key).unwrap();
        let written = there.map(|entry| cluster.store.update(&key, b"damaged", entry.revision));
        written.unwrap_or_else(|| cluster.store.create(&key, b"damaged")).unwrap();
        key
    };
    // The store cannot be told of this one.
    let early = damage("early");
    steward.assign(&owner("early"), &v4(), PATIENCE).unwrap();
    for number in 0..3 {
        steward.assign(&owner(&format!("c{number}")), &v4(), PATIENCE).unwrap();
    }
    // An order is carried out whatever became of the others, and behind it all is told.
    eventually("all others are told", || cluster.held().len() == 3 && steward.state().untold == 1);
    let late = damage("c0");
    // Nobody here gave these: they are given back by their handles, and one of them is damaged.
    let strangers = damage("stranger");
    for container in ["early", "c0", "c1", "stranger", "unknown"] {
        steward.release(&owner(container), None).unwrap();
    }
    let is_left =
        |container: &str| notes::released(&state).join(notes::file_name(&owner(container))).exists();
    eventually("the others are given back", || !is_left("c1") && !is_left("unknown"));
    let handles = || cluster.held().into_iter().map(|(handle, _)| handle).collect::<Vec<_>>();
    eventually("the damaged ones stay", || handles() == ["net.c0", "net.c2"]);
    assert!(is_left("c0") && is_left("early") && is_left("stranger"));
    for key in [&early, &late, &strangers] {
        eventually("it is told", || steward.state().unreadable.iter().any(|text| text.contains(key)));
        let there = cluster.store.get(key).unwrap().unwrap();
        cluster.store.delete(key, there.revision).unwrap();
    }
    steward.assign(&owner("next"), &v4(), PATIENCE).unwrap();
    steward.release(&owner("next"), None).unwrap();
    eventually("mended, they are given back", || settled(&steward, &state) && handles() == ["net.c2"]);
    cluster.assert_sound();
}

#[test]
fn a_block_that_makes_no_sense_is_told_and_stops_nobody() {
    let cluster = Cluster::new("broken", pool());
    let steward = cluster.steward("node1");
    eventually("a stock", || steward.state().stock == 4);
    let before = steward.assign(&owner("before"), &v4(), PATIENCE).unwrap();
    eventually("all is told", || steward.state().untold == 0);
    let key = format!("/calico/ipam/v2/assignment/ipv4/block/{}-28", before[0].network());
    let entry = cluster.store.get(&key).unwrap().unwrap();
    cluster.store.update(&key, b"{\"cidr\": 1}", entry.revision).unwrap();
    for number in 0..8 {
        steward.assign(&owner(&format!("c{number}")), &v4(), PATIENCE).unwrap();
    }
    eventually("it is told", || steward.state().unreadable.iter().any(|text| text.contains(&key)));
    steward.release(&owner("before"), None).unwrap();
    let there = cluster.store.get(&key).unwrap().unwrap();
    cluster.store.update(&key, &entry.value, there.revision).unwrap();
}

#[test]
fn a_pod_gets_the_address_that_it_asks_for_again_from_its_sandbox_before() {
    let cluster = Cluster::new("successor", pool());
    let steward = cluster.steward("node1");
    let this = Wish { ips: vec!["10.244.0.77".parse().unwrap()], ..v4() };
    let first = steward.assign(&owner("first"), &this, PATIENCE).unwrap();
    eventually("the store knows", || steward.state().untold == 0);
    assert_eq!(steward.assign(&owner("second"), &this, PATIENCE).unwrap(), first);
    steward.release(&owner("first"), None).unwrap();
    eventually("the store knows the successor", || {
        cluster.held() == [("net.second".to_owned(), first[0].addr())].into()
    });
    cluster.assert_sound();
}

#[test]
fn those_who_gave_up_take_nothing_when_the_store_is_back() {
    let cluster = Cluster::new("gave-up", pool());
    cluster.store.set(Mood::Away);
    let steward = cluster.steward("node1");
    for number in 0..20 {
        let waits = Duration::from_millis(1);
        assert!(steward.assign(&owner(&format!("c{number}")), &v4(), waits).is_err());
    }
    cluster.store.set(Mood::Well);
    eventually("a stock", || steward.state().stock == 4 && steward.state().trouble.is_none());
    let stock = podwire_block_ipam::Handle::for_warm_pool("node1");
    assert_eq!(Allocator::new(&cluster.store, now).addresses_of(&stock).unwrap().len(), 4);
}

#[test]
fn a_del_of_what_has_no_lease_takes_nothing_from_the_containers_other_interface() {
    let cluster = Cluster::new("interfaces", pool());
    let steward = cluster.steward("node1");
    let given = steward.assign(&owner("c1"), &v4(), PATIENCE).unwrap()[0].addr();
    let held = [("net.c1".to_owned(), given)].into();
    eventually("the store knows", || cluster.held() == held);
    steward.release(&Owner { ifname: "net2".into(), ..owner("c1") }, None).unwrap();
    eventually("it is carried out", || settled(&steward, &cluster.state("node1")));
    assert_eq!(cluster.held(), held);
    cluster.assert_sound();
}
