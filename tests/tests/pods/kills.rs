//! `podwire pod` can be killed at any moment while it runs or stops a pod. The pod is then listed, can be removed, and
//! leaves nothing.

use podwire_tests::strace::{killed_at, operations, Operation, Traced};
use podwire_tests::Output;

use crate::world::World;

/// `podwire pod` with these arguments, behind a wrapper.
struct Call<'w> {
    world: &'w World,
    words: &'static str,
}

impl Traced for Call<'_> {
    fn behind(&self, wrapper: &[&str]) -> Output {
        let (variables, program) =
            self.world.prefix().rsplit_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        let wrapper: Vec<_> = wrapper.iter().map(|word| format!("'{word}'")).collect();
        let script = format!("{variables} exec {} {program} pod {}", wrapper.join(" "), self.words);
        Output::from(self.world.node.try_sh(&script))
    }
}

/// The operations of a run and of its removal.
fn operations_of(world: &World, words: &'static str) -> Vec<Operation> {
    let (all, output) = operations(&world.node, &Call { world, words });
    assert_eq!(output.status, 0, "{}{}", output.stdout, output.stderr);
    all
}

#[test]
fn a_pod_whose_run_is_killed_at_any_point_is_removed_or_run_again_and_leaves_nothing() {
    let world = World::new();
    let words = "run web --port 8080:80";
    let all = operations_of(&world, words);
    world.ok("rm web");
    let (mut killed, mut unfinished) = (0, 0);
    for (n, operation) in all.iter().enumerate() {
        let (died, output) = killed_at(&Call { world: &world, words }, operation);
        assert!(died || output.status == 0, "{operation}: {}{}", output.stdout, output.stderr);
        killed += usize::from(died);
        let list = world.json("list");
        let states: Vec<_> =
            list["pods"].as_array().unwrap().iter().map(|pod| pod["state"].as_str().unwrap()).collect();
        let fair = matches!(states[..], [] | ["unfinished"] | ["ready"]);
        assert!(fair && list["problems"] == serde_json::json!([]), "after {operation}: {list}");
        unfinished += usize::from(states == ["unfinished"]);
        if n % 3 == 0 && states != ["ready"] {
            world.ok(words);
        }
        world.ok("rm web");
        world.assert_clean(&format!("after a run that died in {operation}"));
    }
    println!("killed at {killed} of {} operations, unfinished after {unfinished}", all.len());
    assert!(
        killed * 5 >= all.len() * 4 && unfinished > killed / 2,
        "{killed} of {}, {unfinished}",
        all.len()
    );
}

#[test]
fn a_removal_that_is_killed_at_any_point_is_completed_by_the_next() {
    let world = World::new();
    world.ok("run web --port 8080:80");
    let all = operations_of(&world, "rm web");
    let mut killed = 0;
    for operation in &all {
        world.ok("run web --port 8080:80");
        let (died, _) = killed_at(&Call { world: &world, words: "rm web" }, operation);
        killed += usize::from(died);
        world.ok("rm web");
        world.assert_clean(&format!("after a removal that died in {operation}"));
    }
    assert!(killed * 5 >= all.len() * 4, "{killed} of {}", all.len());
}
