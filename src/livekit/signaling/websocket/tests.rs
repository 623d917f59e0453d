//! Tests proxies that accept a connection and then stall, on virtual time.

use tokio::{io::AsyncReadExt, net::TcpListener};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

use super::*;

const LIMIT: Duration = Duration::from_secs(100);

/// The result of a connection through this proxy, and its duration.
async fn gone_through(address: &str, roots: &[CertificateDer<'static>]) -> (ProxyError, Duration) {
    let url = Url::parse("wss://sfu.example.com").unwrap();
    let environment = |name: &str| (name == "all_proxy").then(|| address.into());
    let (start, proxy) = (time::Instant::now(), Proxy::named_in(environment, &url, false).unwrap().unwrap());
    let error = through(&proxy, &url, roots, LIMIT).await.err().unwrap();
    (error, start.elapsed())
}

#[tokio::test(start_paused = true)]
async fn proxy_that_does_not_respond_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (error, took) = gone_through(&format!("http://{address}"), &[]).await;
    assert_eq!(took, LIMIT * 4 / 5);
    assert_eq!(error.proxy, format!("{address} (all_proxy)"));
    assert_eq!(error.source.to_string(), "no response within 80 s");
}

#[tokio::test(start_paused = true)]
async fn time_to_reach_a_proxy_counts_toward_its_limit() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.der().clone(), made.signing_key.serialize_der().try_into().unwrap());
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // It takes a minute for TLS, and then receives the request and sends nothing.
    let serving = async {
        let (stream, _) = listener.accept().await.unwrap();
        time::sleep(Duration::from_secs(60)).await;
        let mut stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await.unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(b"\r\n\r\n") {
            stream.read_buf(&mut heard).await.unwrap();
        }
        assert!(heard.starts_with(b"CONNECT sfu.example.com:443 "));
        std::future::pending::<()>().await;
    };
    let address = format!("https://{address}");
    let roots = [certificate];
    let (error, took) = tokio::select! {
        gone = gone_through(&address, &roots) => gone,
        () = serving => unreachable!("it never ends"),
    };
    assert_eq!((error.source.to_string().as_str(), took), ("no response within 80 s", LIMIT * 4 / 5));
}
