//! A wire between a client and a server that a test can cut.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The wire. While it is cut, connections are closed as soon as they come.
pub struct Wire {
    pub url: String,
    whole: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Wire {
    pub async fn to(server: &str) -> Wire {
        let target = server.rsplit('/').next().unwrap().to_string();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (whole, is_whole) = watch::channel(true);
        let task = tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let (target, mut is_whole) = (target.clone(), is_whole.clone());
                tokio::spawn(async move {
                    if !*is_whole.borrow_and_update() {
                        return;
                    }
                    let Ok(mut far) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = is_whole.changed() => {}
                    }
                });
            }
        });
        Wire { url, whole, task }
    }

    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    pub fn mend(&self) {
        self.whole.send_replace(true);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}
