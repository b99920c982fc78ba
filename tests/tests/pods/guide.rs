//! The network and the commands of docs/pods.md work, in their order.

use podwire_tests::{podwire, project};

use crate::world::{World, CONF};

/// The code blocks of a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    text.split(&begin).skip(1).map(|rest| rest.split("```").next().expect("its end").to_owned()).collect()
}

#[test]
fn every_command_of_the_guide_works() {
    let world = World::new();
    let guide = std::fs::read_to_string(project("docs/pods.md")).expect("the guide");
    let (networks, commands) = (blocks(&guide, "json"), blocks(&guide, "sh"));
    assert!(networks.len() == 1 && commands.len() >= 2, "{guide}");
    world.node.write(&format!("{CONF}/10-pods.conflist"), &networks[0]);
    let setting = world.prefix().replace(&podwire(), "").replace(' ', "\nexport ");
    let path = std::path::PathBuf::from(podwire());
    let folder = path.parent().expect("dist").display();
    let script = format!("set -ex\nexport {setting} PATH={folder}:$PATH\n{}", commands.concat());
    let printed = world.node.sh(&script);
    assert!(
        printed.contains("running default/web  10.42.0.") && printed.contains("nameserver 10.96.0.10"),
        "{printed}"
    );
    assert_eq!(world.ok("list"), "no pods\n");
}
