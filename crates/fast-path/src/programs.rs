//! The programs, loaded into the kernel.

use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{Array, Map, MapData, MapError, PerCpuArray};
use aya::programs::{ProgramError, SchedClassifier};
use aya::{include_bytes_aligned, Ebpf, EbpfLoader};
use podwire_netlink::rt::tc::program::Direction;
use rustix::time::ClockId;

use crate::devices::Role;
use crate::error::{Error, Result};

static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fast_path.o"));

/// The traffic that programs redirected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redirected {
    /// Packets; one of segmentation offload counts once.
    pub packets: u64,
    /// Bytes, with Ethernet headers.
    pub bytes: u64,
}

/// The programs and their maps.
pub(crate) struct Programs {
    object: Ebpf,
    generation: Array<MapData, u32>,
    redirected: PerCpuArray<MapData, [u64; 2]>,
    current: u32,
}

impl Programs {
    /// Loads the programs. Those of an earlier process stay attached until they are replaced.
    pub fn load() -> Result<Programs> {
        let mut loader = EbpfLoader::new();
        let ticks = ticks_per_second();
        loader.override_global("ticks_per_second", &ticks, true);
        let mut object = loader.load(OBJECT).map_err(|source| Error::Load(source.into()))?;
        for (name, program) in object.programs_mut() {
            let load =
                |source: ProgramError| Error::Verify { program: name.to_owned(), source: Box::new(source) };
            let program: &mut SchedClassifier = program.try_into().map_err(load)?;
            program.load().map_err(load)?;
        }
        let generation = Array::try_from(take_map(&mut object, ".bss")?)?;
        let redirected = PerCpuArray::try_from(take_map(&mut object, "redirected")?)?;
        Ok(Programs { object, generation, redirected, current: 0 })
    }

    /// The program for packets of this direction at a device of this role.
    pub fn of(&self, role: Role, direction: Direction) -> Result<BorrowedFd<'_>> {
        let name = match (role, direction) {
            (Role::Pod, Direction::Ingress) => "ingress_pod",
            (Role::Pod, Direction::Egress) => "egress_pod",
            (Role::Uplink, Direction::Ingress) => "ingress_uplink",
            (Role::Uplink, Direction::Egress) => "egress_uplink",
        };
        let failed = |source: ProgramError| Error::Verify { program: name.into(), source: Box::new(source) };
        let missing = Error::Map(name.into());
        let program: &SchedClassifier =
            self.object.program(name).ok_or(missing)?.try_into().map_err(failed)?;
        Ok(program.fd().map_err(failed)?.as_fd())
    }

    /// From now on, packets of the flows that were learned before take the normal path, where nftables evaluates them again.
    pub fn forget_flows(&mut self) -> Result<()> {
        self.current = self.current.wrapping_add(1);
        Ok(self.generation.set(0, self.current, 0)?)
    }

    /// What was redirected to pods and to other nodes since the programs were loaded.
    pub fn redirected(&self) -> Result<(Redirected, Redirected)> {
        let of = |index: u32| -> Result<Redirected> {
            let values = self.redirected.get(&index, 0)?;
            let add = |sum: Redirected, [packets, bytes]: &[u64; 2]| Redirected {
                packets: sum.packets + packets,
                bytes: sum.bytes + bytes,
            };
            Ok(values.iter().fold(Redirected::default(), add))
        };
        Ok((of(1)?, of(0)?))
    }
}

/// The frequency of the kernel's timer (`CONFIG_HZ`): the resolution of the coarse clock is one tick.
fn ticks_per_second() -> u64 {
    let tick = rustix::time::clock_getres(ClockId::MonotonicCoarse);
    1_000_000_000 / u64::try_from(tick.tv_nsec).unwrap_or_default().max(1)
}

fn take_map(object: &mut Ebpf, name: &str) -> Result<Map> {
    object.take_map(name).ok_or_else(|| Error::Map(name.to_owned()))
}

impl From<MapError> for Error {
    fn from(error: MapError) -> Error {
        Error::Map(error.to_string())
    }
}
