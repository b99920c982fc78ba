//! Stops and removes pods.

use crate::checkpoint::{Checkpoint, Stage};
use crate::pod_dir::PodDir;
use crate::{attach, Error, PodName, Pods, Result};

/// Whether there was something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The pod was stopped.
    Now,
    /// The pod was stopped before or does not exist.
    Already,
}

impl Pods<'_> {
    /// Detaches a pod's networks, the last one first, and ends its process. The checkpoint stays until the pod is removed.
    ///
    /// It can be repeated and needs nothing but the checkpoint: the process, namespaces, config and our plugins' files may be
    /// gone. A failure does not prevent the other steps.
    pub fn stop(&self, name: &PodName) -> Result<Stopped> {
        let Some(dir) = PodDir::find(&self.dir, name)? else { return Ok(Stopped::Already) };
        match dir.checkpoint()? {
            Some(pod) if pod.stage == Stage::Stopped => Ok(Stopped::Already),
            Some(mut pod) => {
                self.tear_down(&dir, &mut pod)?;
                pod.stage = Stage::Stopped;
                dir.save(&pod)?;
                Ok(Stopped::Now)
            }
            // The process that started it died before it created anything.
            None => dir.remove().map(|()| Stopped::Now),
        }
    }

    /// Stops a pod and removes its directory. With `force` even if a plugin fails or its checkpoint is invalid: what the plugin
    /// holds, such as an address, is left to a GC.
    pub fn remove(&self, name: &PodName, force: bool) -> Result<Stopped> {
        let Some(dir) = PodDir::find(&self.dir, name)? else { return Ok(Stopped::Already) };
        let stopped = dir.checkpoint().and_then(|pod| match pod {
            Some(mut pod) if pod.stage != Stage::Stopped => self.tear_down(&dir, &mut pod),
            _ => Ok(()),
        });
        match stopped {
            Err(error) if !force => Err(error),
            _ => dir.remove().map(|()| Stopped::Now),
        }
    }

    /// Removes everything of the pod except the checkpoint.
    pub(crate) fn tear_down(&self, dir: &PodDir, pod: &mut Checkpoint) -> Result<()> {
        if pod.stage == Stage::Ready {
            pod.stage = Stage::Stopping;
            dir.save(pod)?;
        }
        let mut errors = attach::detach(&self.runtime, pod);
        if let Some(process) = pod.process {
            let name = || pod.spec.name.clone();
            match process.end() {
                Ok(true) => {}
                Ok(false) => errors.push(Error::StillRunning { name: name(), pid: process.pid }),
                Err(error) => errors.push(Error::Pause { name: name(), reason: format!("end it: {error}") }),
            }
        }
        Error::all(errors)
    }
}
