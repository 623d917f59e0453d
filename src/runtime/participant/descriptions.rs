//! Cuts long descriptions of tools that come from servers.

use crate::{
    protocol::session::{Event, ToolCaps},
    tool::{Tool, ToolName},
    value::prefix,
};

/// The lengths to which descriptions are cut while all tools exceed their limit, in bytes.
const SHORTER: [usize; 3] = [4 * 1024, 2 * 1024, 1024];

/// What a registration has of each tool besides its texts and schemas, in bytes: its name, keys and hints.
const OF_EACH: usize = 256;

/// A description that was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CutDescription {
    pub(super) tool: ToolName,
    pub(super) size: usize,
    pub(super) offered: usize,
}

impl CutDescription {
    pub(super) fn event(&self) -> Event {
        Event::DescriptionCut { tool: self.tool.clone(), size: self.size, offered: self.offered }
    }
}

/// Cuts the descriptions that are over the limit of one, and further ones while all tools exceed their limit. Only those of
/// tools that `is_foreign` names are cut.
pub(super) fn cut(
    tools: &mut [Tool],
    caps: &ToolCaps,
    is_foreign: impl Fn(&ToolName) -> bool,
) -> Vec<CutDescription> {
    let foreign: Vec<bool> = tools.iter().map(|tool| is_foreign(tool.name())).collect();
    let schemas: Vec<usize> = tools.iter().map(schema_size).collect();
    let total = |limit: usize| -> usize {
        let each = tools.iter().zip(&foreign).zip(&schemas).take(caps.count);
        each.map(|((tool, foreign), schema)| {
            let text = tool.description().len();
            OF_EACH + schema + if *foreign { text.min(limit) } else { text }
        })
        .sum()
    };
    let most = caps.description_bytes;
    let mut limits = std::iter::once(most).chain(SHORTER.into_iter().filter(|limit| *limit < most));
    let shortest = most.min(SHORTER[SHORTER.len() - 1]);
    let limit = limits.find(|limit| total(*limit) <= caps.registration_bytes).unwrap_or(shortest);
    let mut cut = Vec::new();
    for (tool, _) in tools.iter_mut().zip(foreign).filter(|(_, is_foreign)| *is_foreign) {
        let size = tool.description().len();
        if size > limit {
            let text = prefix(tool.description(), limit.saturating_sub('…'.len_utf8()));
            *tool = tool.clone().with_description(format!("{text}…"));
            cut.push(CutDescription { tool: tool.name().clone(), size, offered: tool.description().len() });
        }
    }
    cut
}

fn schema_size(tool: &Tool) -> usize {
    let schemas = [tool.input_schema(), tool.output_schema()];
    schemas.into_iter().flatten().map(|schema| schema.to_string().len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(count: usize, size: usize) -> Vec<Tool> {
        let name = |n: usize| format!("t{n}").parse().unwrap();
        (0..count).map(|n| Tool::new(name(n), "d".repeat(size))).collect()
    }

    #[test]
    fn long_description_of_a_server_is_cut_and_named() {
        let caps = ToolCaps::default();
        let mut few = tools(3, 8 * 1024);
        few.push(Tool::new("long".parse().unwrap(), "é".repeat(5_000)));
        let named = cut(&mut few, &caps, |_| true);
        assert_eq!(
            named,
            [CutDescription { tool: "long".parse().unwrap(), size: 10_000, offered: 8 * 1024 - 1 }]
        );
        assert!(few[3].description().ends_with("é…") && few[0].description().len() == 8 * 1024);
        // A description that its author wrote for this program is not cut.
        assert!(cut(&mut tools(1, 9_000), &caps, |_| false).is_empty());
    }

    #[test]
    fn descriptions_are_cut_further_while_all_tools_exceed_their_limit() {
        let caps = ToolCaps::default();
        for (count, size, limit) in
            [(26, 8_192, 8_192), (50, 8_192, 4_096), (100, 8_192, 2_048), (128, 3_000, 1_024)]
        {
            let mut many = tools(count, size);
            let named = cut(&mut many, &caps, |_| true);
            assert!(many.iter().all(|tool| tool.description().len() == size.min(limit)), "{count} of {size}");
            assert_eq!(named.len(), if limit < size { count } else { 0 });
        }
    }
}
