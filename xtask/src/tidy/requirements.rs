//! `docs/requirements.md` lists every requirement once, and what is said to show it exists.

use super::{Finding, Tree};

const PAGE: &str = "docs/requirements.md";
const NOT_YET: &str = "not yet";

/// The requirements and traps that the page must list: from 1 to the number given.
const LISTED: [(&str, u32); 11] = [
    ("S000", 51),
    ("S001", 41),
    ("S002", 43),
    ("S003", 46),
    ("S004", 35),
    ("D000", 25),
    ("D001", 18),
    ("D002", 19),
    ("D003", 14),
    ("D004", 20),
    ("H", 16),
];

/// What people complain about elsewhere and this project answers for.
const COMPLAINTS: [std::ops::RangeInclusive<u32>; 4] = [1..=47, 53..=53, 58..=59, 62..=62];

/// A complaint may be none of ours, with a reason behind it.
const NOT_OURS: &str = "does not concern us: ";

/// Every id that the page must list.
fn ids() -> impl Iterator<Item = String> {
    let listed = LISTED
        .iter()
        .flat_map(|(document, last)| (1..=*last).map(move |number| format!("{document}-{number}")));
    let complaints = COMPLAINTS.into_iter().flatten();
    listed.chain(complaints.map(|number| format!("C-{number}")))
}

/// Each id has one row, and each row names tests or files that exist, or says that none do yet.
pub fn all_are_listed_and_shown(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.get(PAGE) else {
        return vec![Finding::file(PAGE, "is missing")];
    };
    let mut findings = Vec::new();
    let mut missing: Vec<String> = ids().collect();
    let mut seen: Vec<&str> = Vec::new();
    for (line, row) in rows(&page.text) {
        let [id, _, shown_by] = row[..] else {
            findings.push(Finding::new(PAGE, line, "a row has three cells"));
            continue;
        };
        if let Some(at) = missing.iter().position(|wanted| wanted == id) {
            missing.remove(at);
        } else if seen.contains(&id) {
            findings.push(Finding::new(PAGE, line, format!("{id} is listed twice")));
        } else {
            findings.push(Finding::new(PAGE, line, format!("{id} is unknown")));
        }
        seen.push(id);
        if id.starts_with("C-") && shown_by.len() > NOT_OURS.len() && shown_by.starts_with(NOT_OURS)
        {
            continue;
        }
        let wrong = wrong_evidence(tree, shown_by);
        findings.extend(wrong.map(|rule| Finding::new(PAGE, line, format!("{id}: {rule}"))));
    }
    findings.extend(
        missing
            .iter()
            .map(|id| Finding::file(PAGE, format!("{id} is missing"))),
    );
    findings
}

/// The rows whose first cell is an id, with their lines.
fn rows(page: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    page.lines().enumerate().filter_map(|(index, line)| {
        let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        is_id(cells[0]).then_some((index + 1, cells))
    })
}

/// `S000-1`, `D002-19`, `H-3`, `C-5`.
fn is_id(cell: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let requirement = cell
        .strip_prefix(['S', 'D'])
        .and_then(|rest| rest.split_once('-'))
        .is_some_and(|(document, number)| digits(document) && digits(number));
    let short = ["C-", "H-"]
        .into_iter()
        .find_map(|it| cell.strip_prefix(it));
    requirement || short.is_some_and(digits)
}

/// What is wrong with a cell of evidence: `` `file.rs::test` `` or `` `file` ``, any number of
/// them, or the words "not yet".
fn wrong_evidence(tree: &Tree, cell: &str) -> Option<String> {
    if cell == NOT_YET {
        return None;
    }
    let quoted: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    if quoted.is_empty() {
        return Some(format!("names a test in backticks or says \"{NOT_YET}\""));
    }
    quoted.into_iter().find_map(|evidence| {
        let (path, test) = match evidence.split_once("::") {
            Some((path, test)) => (path, Some(test)),
            None => (evidence, None),
        };
        let Some(source) = tree.get(path) else {
            return Some(format!("there is no file {path}"));
        };
        let test = test?;
        let is_there = source.text.contains(&format!("fn {test}("));
        (!is_there).then(|| format!("there is no `fn {test}` in {path}"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{seen, tree};
    use super::*;

    /// A page with a row for every id but those in `without`.
    fn page(without: &[&str], more: &str) -> String {
        let rows = ids()
            .filter(|id| !without.contains(&id.as_str()))
            .map(|id| format!("| {id} | text | not yet |\n"));
        let rows: String = rows.collect();
        format!("{more}\n| id | requirement | shown by |\n|---|---|---|\n{rows}")
    }

    #[test]
    fn a_complete_page() {
        assert_eq!(
            seen(&all_are_listed_and_shown(&tree(&[(PAGE, &page(&[], ""))]))),
            ""
        );
    }

    #[test]
    fn missing_double_and_unknown_ids() {
        let more = "| S000-2 | text | not yet |\n| S009-1 | text | not yet |";
        let page = page(&["S001-41"], more);
        assert_eq!(
            seen(&all_are_listed_and_shown(&tree(&[(PAGE, &page)]))),
            "docs/requirements.md:2: S009-1 is unknown\n\
             docs/requirements.md:6: S000-2 is listed twice\n\
             docs/requirements.md: S001-41 is missing"
        );
    }

    #[test]
    fn evidence_must_exist() {
        let more = "| S000-1 | text | `a.rs::here` |\n\
                    | S000-2 | text | `a.rs::here`, `a.rs::gone` |\n\
                    | S000-3 | text | `b.rs::here` |\n\
                    | S000-4 | text | not yet, surely |\n\
                    | S000-5 | text | `docs/requirements.md` |\n\
                    | S000-6 | text |\n\
                    | C-13 | text | does not concern us: there is none |\n\
                    | C-14 | text | does not concern us: |\n\
                    | S000-7 | text | does not concern us: there is none |";
        let without = [
            "S000-1", "S000-2", "S000-3", "S000-4", "S000-5", "S000-7", "C-13", "C-14",
        ];
        let page = page(&without, more);
        let files = [
            (PAGE, page.as_str()),
            ("a.rs", "fn here() {}\nfn gone_by() {}"),
        ];
        assert_eq!(
            seen(&all_are_listed_and_shown(&tree(&files))),
            "docs/requirements.md:2: S000-2: there is no `fn gone` in a.rs\n\
             docs/requirements.md:3: S000-3: there is no file b.rs\n\
             docs/requirements.md:4: S000-4: names a test in backticks or says \"not yet\"\n\
             docs/requirements.md:6: a row has three cells\n\
             docs/requirements.md:8: C-14: names a test in backticks or says \"not yet\"\n\
             docs/requirements.md:9: S000-7: names a test in backticks or says \"not yet\""
        );
    }

    #[test]
    fn no_page() {
        let found = all_are_listed_and_shown(&tree(&[]));
        assert_eq!(seen(&found), "docs/requirements.md: is missing");
    }
}
