//! Rules about the modules of a crate: the dependencies between them, read from the syntax tree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use syn::visit::{self, Visit};
use syn::{Item, UseTree};

use super::{Finding, Tree};

/// Modules with the same parent do not depend on each other in a cycle, at any level. Re-exports count as their target.
pub fn siblings_have_no_cycles(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let roots = tree.rust().filter_map(|source| {
        let directory = source.path.strip_suffix("/src/lib.rs");
        directory.or_else(|| source.path.strip_suffix("/src/main.rs"))
    });
    for directory in roots.collect::<BTreeSet<_>>() {
        let src = format!("{directory}/src");
        let file = |name: &str| Some(tree.get(&format!("{src}/{name}"))?.text.clone());
        let root = file("lib.rs").map_or("main.rs", |_| "lib.rs");
        let cycles = match Crate::read(root, file) {
            Ok(found) => found.cycles(),
            Err(error) => {
                findings.push(Finding::file(&src, error));
                continue;
            }
        };
        findings.extend(
            cycles
                .iter()
                .map(|cycle| Finding::file(&src, cycle.to_string())),
        );
    }
    findings
}

/// The path of a module below its crate; empty for the crate itself.
type ModulePath = Vec<String>;

/// Dependencies between siblings, each with one module that depends and the module that it uses.
type Dependencies = BTreeMap<(String, String), (ModulePath, ModulePath)>;

/// Maximum length of a chain of re-exports that is followed.
const RESOLVE_DEPTH_MAX: usize = 16;

/// The declarations and references of one module. Test code is left out.
#[derive(Debug, Default)]
struct Module {
    children: BTreeSet<String>,
    items: BTreeSet<String>,
    /// Names that `use` imports, with their paths.
    imports: BTreeMap<String, Vec<String>>,
    /// Modules that `use ...::*` imports.
    globs: Vec<Vec<String>>,
    /// All paths of more than one segment, in `use` and in code.
    references: BTreeSet<Vec<String>>,
}

/// The modules of a crate.
#[derive(Debug, Default)]
struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

/// Modules with the same parent that depend on each other.
#[derive(Debug, PartialEq, Eq)]
struct Cycle {
    members: Vec<String>,
    /// For each pair of members, one module and a module that it depends on.
    because: Vec<(ModulePath, ModulePath)>,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "these modules depend on each other: {}",
            self.members.join(", ")
        )?;
        for (from, to) in &self.because {
            write!(f, "\n    {} uses {}", from.join("::"), to.join("::"))?;
        }
        Ok(())
    }
}

impl Crate {
    /// Reads a crate from its root. `read` returns the text of a file, named from the directory of the root.
    fn read(root: &str, read: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut found = Self::default();
        let text = read(root).ok_or_else(|| format!("{root}: no such file"))?;
        found.add_file(root, &text, Vec::new(), &read)?;
        Ok(found)
    }

    fn add_file(
        &mut self,
        name: &str,
        text: &str,
        path: ModulePath,
        read: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), String> {
        let file = syn::parse_file(text).map_err(|error| format!("{name}: {error}"))?;
        self.add_items(&file.items, path, read)
    }

    fn add_items(
        &mut self,
        items: &[Item],
        path: ModulePath,
        read: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), String> {
        let mut module = Module::default();
        for item in items.iter().filter(|item| !is_for_tests(item)) {
            if let Item::Mod(child) = item {
                let name = child.ident.to_string();
                module.children.insert(name.clone());
                let below = [path.as_slice(), &[name]].concat();
                match &child.content {
                    Some((_, items)) => self.add_items(items, below, read)?,
                    None => {
                        let name = below.join("/");
                        let names = [format!("{name}.rs"), format!("{name}/mod.rs")];
                        let text = names.iter().find_map(|name| read(name));
                        let text = text.ok_or_else(|| format!("{name}: no such file"))?;
                        self.add_file(&name, &text, below, read)?;
                    }
                }
                continue;
            }
            if let Item::Use(import) = item {
                module.add_import(&import.tree, &mut Vec::new());
                continue;
            }
            module.items.extend(name_of(item));
            References(&mut module).visit_item(item);
        }
        self.modules.insert(path, module);
        Ok(())
    }

    /// Returns the module that defines an item which `from` refers to; `None` for items of other crates.
    fn defined_in(&self, from: &ModulePath, path: &[String], depth: usize) -> Option<ModulePath> {
        if depth > RESOLVE_DEPTH_MAX {
            return None;
        }
        let (first, mut rest) = path.split_first()?;
        let mut module = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.clone(),
            "super" => parent(from)?,
            _ => {
                // The first segment is a name of this module, or another crate.
                let here = self.modules.get(from)?;
                if !here.has(first) {
                    return None;
                }
                rest = path;
                from.clone()
            }
        };
        loop {
            let Some((name, below)) = rest.split_first() else {
                return Some(module);
            };
            if name == "super" {
                module = parent(&module)?;
                rest = below;
                continue;
            }
            let here = self.modules.get(&module)?;
            if here.children.contains(name) {
                module.push(name.clone());
                rest = below;
                continue;
            }
            if here.items.contains(name) {
                return Some(module);
            }
            if let Some(import) = here.imports.get(name) {
                let path = [import.as_slice(), below].concat();
                return self.defined_in(&module, &path, depth + 1);
            }
            let through = here.globs.iter().find_map(|glob| {
                let path = [glob.as_slice(), rest].concat();
                let target = self.defined_in(&module, glob, depth + 1)?;
                let has_it = self
                    .modules
                    .get(&target)
                    .is_some_and(|target| target.has(name));
                has_it.then(|| self.defined_in(&module, &path, depth + 1))?
            });
            // A name without a definition belongs to this module, because a macro may define it.
            return Some(through.unwrap_or(module));
        }
    }

    /// Returns every group of sibling modules that depend on each other.
    fn cycles(&self) -> Vec<Cycle> {
        let mut edges: BTreeMap<ModulePath, Dependencies> = BTreeMap::new();
        for (from, module) in &self.modules {
            for reference in &module.references {
                let Some(to) = self.defined_in(from, reference, 0) else {
                    continue;
                };
                let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if let (Some(one), Some(other)) = (from.get(common), to.get(common)) {
                    let siblings = edges.entry(from[..common].to_vec()).or_default();
                    siblings
                        .entry((one.clone(), other.clone()))
                        .or_insert_with(|| (from.clone(), to.clone()));
                }
            }
        }
        edges.values().flat_map(cycles_among).collect()
    }
}

impl Module {
    /// Returns whether a name is defined in this module.
    fn has(&self, name: &str) -> bool {
        self.children.contains(name) || self.items.contains(name) || self.imports.contains_key(name)
    }

    fn add_import(&mut self, tree: &UseTree, prefix: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.add_import(&path.tree, prefix);
                prefix.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_import(tree, prefix);
                }
            }
            UseTree::Glob(_) => {
                self.globs.push(prefix.clone());
                self.references.insert(prefix.clone());
            }
            UseTree::Name(name) => self.import(prefix, &name.ident, &name.ident),
            UseTree::Rename(rename) => self.import(prefix, &rename.ident, &rename.rename),
        }
    }

    fn import(&mut self, prefix: &[String], name: &syn::Ident, as_name: &syn::Ident) {
        let mut path = prefix.to_vec();
        let mut as_name = as_name.to_string();
        if name == "self" {
            as_name = prefix.last().cloned().unwrap_or(as_name);
        } else {
            path.push(name.to_string());
        }
        if as_name != "_" && path != [as_name.clone()] {
            self.imports.insert(as_name, path.clone());
        }
        self.references.insert(path);
    }
}

/// Collects the paths that code refers to.
struct References<'a>(&'a mut Module);

impl<'ast> Visit<'ast> for References<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let segments = path.segments.iter();
            let path = segments.map(|segment| segment.ident.to_string()).collect();
            self.0.references.insert(path);
        }
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        self.0.add_import(&import.tree, &mut Vec::new());
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        // Most macros take arguments like a call.
        let arguments = syn::punctuated::Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
        for argument in call.parse_body_with(arguments).iter().flatten() {
            self.visit_expr(argument);
        }
    }
}

fn parent(path: &ModulePath) -> Option<ModulePath> {
    let (_, parent) = path.split_last()?;
    Some(parent.to_vec())
}

pub fn is_for_tests(item: &Item) -> bool {
    let attributes = match item {
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        let words = attribute.meta.require_list();
        attribute.path().is_ident("cfg")
            && words.is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        _ => return None,
    };
    Some(name.to_string())
}

/// Returns the groups of modules that reach each other.
fn cycles_among(edges: &Dependencies) -> Vec<Cycle> {
    let mut reach: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (one, other) in edges.keys() {
        reach.entry(one).or_default().insert(other);
    }
    // A crate has some dozens of modules, so repeating until nothing is added is fast enough.
    loop {
        let before: usize = reach.values().map(BTreeSet::len).sum();
        let snapshot = reach.clone();
        for targets in reach.values_mut() {
            let further: Vec<&str> = targets
                .iter()
                .filter_map(|target| snapshot.get(target))
                .flatten()
                .copied()
                .collect();
            targets.extend(further);
        }
        if reach.values().map(BTreeSet::len).sum::<usize>() == before {
            break;
        }
    }
    let reaches =
        |one: &str, other: &str| reach.get(one).is_some_and(|found| found.contains(other));
    let mut seen = BTreeSet::new();
    let mut cycles = Vec::new();
    for name in reach.keys().copied() {
        if !reaches(name, name) || !seen.insert(name) {
            continue;
        }
        let members: Vec<String> = reach
            .keys()
            .filter(|other| reaches(name, other) && reaches(other, name))
            .map(|other| (*other).to_owned())
            .collect();
        seen.extend(
            reach
                .keys()
                .filter(|other| members.iter().any(|m| m == *other)),
        );
        let because = edges
            .iter()
            .filter(|((one, other), _)| members.contains(one) && members.contains(other))
            .map(|(_, because)| because.clone())
            .collect();
        cycles.push(Cycle { members, because });
    }
    cycles
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let read = |name: &str| {
            let file = files.iter().find(|(file, _)| *file == name);
            file.map(|(_, text)| (*text).to_owned())
        };
        let found = Crate::read("lib.rs", read).unwrap();
        found
            .cycles()
            .into_iter()
            .map(|cycle| cycle.members)
            .collect()
    }

    #[test]
    fn siblings_that_use_each_other_are_found() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "pub struct B(super::c::C);"),
            (
                "c.rs",
                "pub struct C; fn f() { println!(\"{}\", crate::a::A) }",
            ),
        ];
        assert_eq!(cycles(&files), [["a", "b", "c"]]);
        assert_eq!(
            cycles(&[files[0], files[1], files[2], ("c.rs", "pub struct C;")]),
            [[""; 0]; 0]
        );
    }

    #[test]
    fn re_exports_count_as_their_target() {
        let files = [
            (
                "lib.rs",
                "mod a; mod b; pub use b::*; pub use a::A as Renamed;",
            ),
            ("a.rs", "use crate::B; pub struct A;"),
            ("b.rs", "use crate::Renamed; pub struct B;"),
        ];
        assert_eq!(cycles(&files), [["a", "b"]]);
    }

    #[test]
    fn uses_in_submodules_count_but_uses_of_parents_and_uses_in_tests_do_not() {
        let files = [
            ("lib.rs", "mod a; mod b; pub struct Root(a::A);"),
            ("a.rs", "mod inner; pub struct A; use crate::Root;"),
            ("a/inner.rs", "use super::A; use crate::b::B;"),
            (
                "b.rs",
                "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }",
            ),
        ];
        assert_eq!(cycles(&files), [[""; 0]; 0]);
        let b = ("b.rs", "pub struct B; use crate::a::A;");
        assert_eq!(cycles(&[files[0], files[1], files[2], b]), [["a", "b"]]);
    }
}
