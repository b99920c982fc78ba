//! The stand-in API server, on a machine of the stage. It is NOT the real one; see its crate.

use std::ops::Deref;
use std::sync::mpsc;
use std::sync::Arc;
use std::thread::JoinHandle;

use podwire_test_servers::StandInApiServer;
use tokio::sync::oneshot;

/// The server, in a separate thread in the machine's network namespace.
pub struct Api {
    server: Arc<StandInApiServer>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Api {
    /// Starts the server at this address, on the machine of this process.
    pub fn start(pid: u32, address: &'static str) -> Api {
        let (sender, receiver) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                sender.send(Arc::new(StandInApiServer::start_at(address).await)).expect("the stage");
                let _ = ended.await;
            });
        };
        let netns = podwire_kernel::Netns::open(format!("/proc/{pid}/ns/net")).expect("the machine");
        let thread = std::thread::spawn(move || netns.run(serve).expect("the machine's network"));
        Api { server: receiver.recv().expect("the server"), end: Some(end), thread: Some(thread) }
    }

    /// Whether there is an event with this reason and a note that contains these words.
    pub fn has_event(&self, node: &str, reason: &str, words: &str) -> bool {
        let is_it = |event: &serde_json::Value| {
            event["reason"] == reason
                && event["regarding"]["name"] == node
                && event["note"].as_str().is_some_and(|note| note.contains(words))
        };
        self.server.state().events.iter().any(is_it)
    }
}

impl Deref for Api {
    type Target = StandInApiServer;

    fn deref(&self) -> &StandInApiServer {
        &self.server
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
