use proptest::prelude::*;

use super::*;

fn labels(text: &str) -> Labels {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(label, value)| (label.into(), value.into())).collect()
}

fn matches(selector: &str, object: &str) -> bool {
    Selector::parse(selector).unwrap_or_else(|error| panic!("{error}")).matches(&labels(object))
}

#[test]
fn operators_mean_the_same_as_in_calico() {
    let holds: &[(&str, &str)] = &[
        ("", ""),
        ("all()", "a=b"),
        ("all( )", ""),
        ("global()", ""),
        ("has(a)", "a="),
        ("has( k8s.io/a-b_c )", "k8s.io/a-b_c=x"),
        ("a == 'b'", "a=b"),
        ("a==\"b\"", "a=b"),
        ("a != 'b'", "a=c"),
        ("a != 'b'", ""),
        ("a in {'b', \"c\"}", "a=c"),
        ("a in {'b','c',}", "a=b"),
        ("a not in {'b'}", "a=c"),
        ("a notin {'b'}", ""),
        ("a contains 'xy'", "a=wxyz"),
        ("a starts with 'wx'", "a=wxyz"),
        ("a startswith ''", "a=wxyz"),
        ("a ends with 'yz'", "a=wxyz"),
        ("!has(a)", "b=c"),
        ("!!has(a)", "a=c"),
        ("!(a == 'b' || c == 'd')", "a=x"),
        ("a == 'b' && c == 'd' || e == 'f'", "e=f"),
        ("a == 'b' && (c == 'd' || e == 'f')", "a=b,e=f"),
        ("in == 'contains'", "in=contains"),
        ("has == 'x'", "has=x"),
    ];
    for (selector, object) in holds {
        assert!(matches(selector, object), "{selector} on {object}");
    }
    let fails: &[(&str, &str)] = &[
        ("has(a)", "b=c"),
        ("a == 'b'", ""),
        ("a != 'b'", "a=b"),
        ("a in {'b'}", ""),
        ("a in {}", "a=b"),
        ("a not in {'b'}", "a=b"),
        ("a contains 'x'", ""),
        ("a starts with 'x'", "a=wx"),
        ("a ends with 'x'", "a=xw"),
        ("!all()", "a=b"),
        ("a == 'b' && (c == 'd' || e == 'f')", "e=f"),
    ];
    for (selector, object) in fails {
        assert!(!matches(selector, object), "{selector} on {object}");
    }
}

#[test]
fn syntax_errors_have_their_position() {
    let wrong: &[(&str, usize)] = &[
        ("a", 2),
        ("a =", 3),
        ("a = 'b'", 3),
        ("a == b", 6),
        ("a == 'b", 6),
        ("(a == 'b'", 10),
        ("a == 'b')", 9),
        ("a in 'b'", 6),
        ("a in {'b' 'c'}", 11),
        ("a not 'b'", 3),
        ("&& a == 'b'", 1),
        ("a == 'b' &&", 12),
        ("a == 'b' & c == 'd'", 10),
        ("has()", 1),
        ("has(a", 1),
        ("all(a)", 1),
        ("'a' == 'b'", 1),
        ("ä == 'b'", 1),
        ("a == 'ä' ö", 10),
    ];
    for (selector, at) in wrong {
        let error = Selector::parse(selector).expect_err(selector);
        assert_eq!(error.at, *at, "{error}");
    }
    assert!(Selector::parse(&format!("{}all(){}", "(".repeat(65), ")".repeat(65))).is_err());
    assert!(Selector::parse(&format!("{}all(){}", "(".repeat(64), ")".repeat(64))).is_ok());
    assert!(Selector::parse(&format!("{} == 'b'", "a".repeat(513))).is_err());
}

#[test]
fn a_selector_has_one_canonical_form() {
    let shown = |text: &str| Selector::parse(text).unwrap().to_string();
    assert_eq!(shown("a=='b'&&!has(c)||all()"), "((a == \"b\" && !has(c)) || all())");
    assert_eq!(shown("a not in{'z','b','z'}"), "a not in {\"b\", \"z\"}");
    assert_eq!(shown("a starts with 'say \"hi\"'"), "a starts with 'say \"hi\"'");
}

proptest! {
    #[test]
    fn the_parser_never_panics_and_parses_its_canonical_form(text in "[a-c\"'!=&|(){}, ä]{0,24}|(has|all|in|not|with|starts)[( )a'\"]{0,8}") {
        if let Ok(selector) = Selector::parse(&text) {
            prop_assert_eq!(Selector::parse(&selector.to_string()), Ok(selector));
        }
    }
}
