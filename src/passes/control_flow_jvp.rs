//! Forward mode through control flow: operands, carries and results are followed by their tangents.

use std::ops::Range;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::jvp::{Dual, Pass, Places, all, dual_list};
use crate::error::Result;
use crate::graph::{ControlFlow, ControlFlowKind, List};
use crate::ops::emit::{Arg, Id};
use crate::ops::op::Type;

type Bodies = SmallVec<[Arc<List>; 2]>;

impl Pass<'_> {
    /// Appends a control-flow op with tangents and returns its results.
    pub(super) fn flow(&self, flow: &ControlFlow, args: &[Dual]) -> Result<Vec<Dual>> {
        match flow.kind {
            ControlFlowKind::Host(ref op) => self.host(op, flow, args),
            ControlFlowKind::Branch => self.branch(flow, args),
            ControlFlowKind::While { carry, history } => {
                self.repeat(flow, args, carry as usize, history)
            }
            ControlFlowKind::Scan { carry, xs, .. } => {
                self.scan(flow, args, carry as usize, (carry + xs) as usize)
            }
        }
    }

    /// A result has a tangent if it has one in some branch.
    fn branch(&self, flow: &ControlFlow, args: &[Dual]) -> Result<Vec<Dual>> {
        let has: Vec<bool> = args.iter().map(|dual| dual.t.is_some()).collect();
        let (takes, gives) = (args.len() - 1, flow.results.len());
        let bodies = |force: &[bool]| -> Result<(Bodies, Vec<bool>)> {
            let (mut lists, mut any) = (Bodies::new(), force.to_vec());
            for body in &flow.bodies {
                let (list, has) = dual_list(body, &has[1..], &all(takes), &all(gives), force)?;
                any.iter_mut().zip(has).for_each(|(any, has)| *any |= has);
                lists.push(Arc::new(list));
            }
            Ok((lists, any))
        };
        let (_, force) = bodies(&vec![false; gives])?;
        let (bodies, has_results) = bodies(&force)?;
        let inner = self.operands(&[0..1, 1..args.len()], args, &has)?;
        let results = &all(gives);
        Ok(self.finish(
            ControlFlowKind::Branch,
            bodies,
            &inner,
            results,
            (&flow.results, &has_results),
        ))
    }

    /// A carry has a tangent if it starts with one or gets one from the body.
    fn scan(
        &self,
        flow: &ControlFlow,
        args: &[Dual],
        carry: usize,
        stacked: usize,
    ) -> Result<Vec<Dual>> {
        let mut has: Vec<bool> = args.iter().map(|dual| dual.t.is_some()).collect();
        let gives = flow.results.len();
        let groups = [0..carry, carry..stacked, stacked..args.len()];
        let results = [0..carry, carry..gives];
        let (list, has_results) = loop {
            let mut force = vec![false; gives];
            force[..carry].copy_from_slice(&has[..carry]);
            let (list, found) = dual_list(&flow.bodies[0], &has, &groups, &results, &force)?;
            if found[..carry] == has[..carry] {
                break (list, found);
            }
            has[..carry].copy_from_slice(&found[..carry]);
        };
        let count = |range: Range<usize>| (range.len() + range.filter(|&i| has[i]).count()) as u32;
        let ControlFlowKind::Scan { length, reverse, .. } = flow.kind else {
            unreachable!("a scan");
        };
        let kind = ControlFlowKind::Scan {
            carry: count(0..carry),
            xs: count(carry..stacked),
            length,
            reverse,
        };
        let inner = self.operands(&groups, args, &has)?;
        let bodies = smallvec![Arc::new(list)];
        Ok(self.finish(kind, bodies, &inner, &results, (&flow.results, &has_results)))
    }

    fn repeat(
        &self,
        flow: &ControlFlow,
        args: &[Dual],
        carry: usize,
        history: bool,
    ) -> Result<Vec<Dual>> {
        let mut has: Vec<bool> = args.iter().map(|dual| dual.t.is_some()).collect();
        let groups = [0..carry, carry..args.len()];
        let body = loop {
            let force = &has[..carry];
            let (list, found) = dual_list(&flow.bodies[1], &has, &groups, &all(carry), force)?;
            if found == has[..carry] {
                break list;
            }
            has[..carry].copy_from_slice(&found);
        };
        let (condition, _) = dual_list(&flow.bodies[0], &has, &groups, &all(1), &[false])?;
        let moving = has[..carry].iter().filter(|has| **has).count();
        let kind = ControlFlowKind::While { carry: (carry + moving) as u32, history };
        let gives = flow.results.len();
        let (results, has_results) = match history {
            false => (all(carry), has[..carry].to_vec()),
            true => {
                let twice = has[..carry].iter().chain(&has[..carry]).copied();
                (vec![0..carry, carry..2 * carry, 2 * carry..gives], twice.chain([false]).collect())
            }
        };
        let inner = self.operands(&groups, args, &has)?;
        let bodies = smallvec![Arc::new(condition), Arc::new(body)];
        Ok(self.finish(kind, bodies, &inner, &results, (&flow.results, &has_results)))
    }

    /// Operands and their tangents; zeros where a tangent is wanted and the operand has none.
    fn operands(&self, groups: &[Range<usize>], args: &[Dual], has: &[bool]) -> Result<Vec<Arg>> {
        let wanted = |(&dual, &has): (&Dual, &bool)| match has {
            true => self.tangent(dual),
            false => Ok(dual.x),
        };
        let tangents: Vec<Id> = args.iter().zip(has).map(wanted).collect::<Result<_>>()?;
        let places = Places::new(groups, has);
        Ok(places.arrange(|i| Arg::Node(args[i].x), |i| Arg::Node(tangents[i])))
    }

    /// Appends the control-flow op of values and tangents; its results are in `groups`.
    fn finish(
        &self,
        kind: ControlFlowKind,
        bodies: Bodies,
        args: &[Arg],
        groups: &[Range<usize>],
        (types, has): (&[Type], &[bool]),
    ) -> Vec<Dual> {
        let places = Places::new(groups, has);
        let results = places.arrange(|i| types[i].clone(), |i| types[i].clone()).into();
        let ids = self.out.flow(ControlFlow { kind, bodies, results }, args);
        let t = |at: &Option<usize>| at.map(|at| ids[at]);
        let duals = places.values.iter().zip(&places.tangents);
        duals.map(|(&at, tangent)| Dual { x: ids[at], t: t(tangent) }).collect()
    }
}
