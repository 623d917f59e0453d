//! Provides the cryptography of DTLS and STUN on `ring`, which TLS uses as well.
//!
//! str0m's own providers bring a second library (`aws-lc-rs`, tens of CPU-seconds of C), or pure-Rust elliptic curves
//! without an audit. Only DTLS 1.2 is used, which is str0m's default. There is no media, so SRTP ciphers return errors.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Instant,
};

use dimpl::{
    CryptoError as DtlsCryptoError, CryptoOperation,
    crypto::{
        Aad, ActiveKeyExchange, Buf, Cipher, CryptoProvider as DtlsCrypto, Dtls12CipherSuite,
        Dtls13CipherSuite, HashAlgorithm, HashContext, HashProvider, HmacProvider, KeyProvider, NamedGroup,
        Nonce, SecureRandom, SignatureAlgorithm, SignatureVerifier, SigningKey, SupportedDtls12CipherSuite,
        SupportedDtls13CipherSuite, SupportedKxGroup, TmpBuf,
    },
};
use ring::{
    aead::{self, LessSafeKey, UnboundKey, quic},
    agreement::{self, EphemeralPrivateKey, UnparsedPublicKey},
    digest, hmac,
    rand::{SecureRandom as _, SystemRandom},
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};
use rustls::pki_types::CertificateDer;
use str0m::crypto::{
    AeadAes128GcmCipher, AeadAes256GcmCipher, Aes128CmSha1_80Cipher, CryptoError, CryptoProvider,
    Sha1HmacProvider, Sha1Provider, Sha256Provider, SrtpProvider, SupportedAeadAes128Gcm,
    SupportedAeadAes256Gcm, SupportedAes128CmSha1_80,
    dtls::{DtlsCert, DtlsImplError, DtlsInstance, DtlsOutput, DtlsProvider, DtlsVersion, ProtocolVersion},
};

/// The length of an authentication tag in bytes, the same for all suites here.
const TAG: usize = 16;

/// Returns the provider for a peer connection.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let provider = PROVIDER.get_or_init(|| {
        Arc::new(CryptoProvider {
            srtp_provider: &Ring,
            sha1_hmac_provider: &Ring,
            sha1_provider: &Ring,
            sha256_provider: &Ring,
            dtls_provider: &Ring,
        })
    });
    provider.clone()
}

/// The provider. It uses `ring` only, and has no state.
#[derive(Debug)]
struct Ring;

impl Sha1HmacProvider for Ring {
    // STUN's MESSAGE-INTEGRITY is HMAC-SHA1 (RFC 8489, section 14.5). Its security does not depend on SHA-1
    // being free of collisions.
    fn sha1_hmac(&self, key: &[u8], payloads: &[&[u8]]) -> [u8; 20] {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key));
        payloads.iter().for_each(|payload| context.update(payload));
        array(context.sign().as_ref())
    }
}

impl Sha1Provider for Ring {
    fn sha1(&self, data: &[u8]) -> [u8; 20] {
        array(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, data).as_ref())
    }
}

impl Sha256Provider for Ring {
    fn sha256(&self, data: &[u8]) -> [u8; 32] {
        array(digest::digest(&digest::SHA256, data).as_ref())
    }
}

/// A digest. Its length depends on the algorithm.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

impl DtlsProvider for Ring {
    fn generate_certificate(&self) -> Option<DtlsCert> {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).ok()?;
        let mut parameters = rcgen::CertificateParams::default();
        // A fixed name: the certificate is known by its fingerprint in the SDP, and says nothing about this
        // machine.
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "DTLS");
        parameters.is_ca = rcgen::IsCa::NoCa;
        let certificate = parameters.self_signed(&key).ok()?;
        Some(DtlsCert { certificate: certificate.der().to_vec(), private_key: key.serialize_der() })
    }

    fn new_dtls(
        &self,
        cert: &DtlsCert,
        now: Instant,
        version: DtlsVersion,
        mtu: Option<usize>,
    ) -> Result<Box<dyn DtlsInstance>, CryptoError> {
        if version != DtlsVersion::Dtls12 {
            return Err(CryptoError::Other(format!("{version} is not supported")));
        }
        // ICE has verified the remote address already, so no cookie is needed.
        let mut config =
            dimpl::Config::builder().use_server_cookie(false).with_crypto_provider(dtls_crypto());
        if let Some(mtu) = mtu {
            config = config.mtu(mtu);
        }
        let config = config.build().map_err(|error| CryptoError::Other(error.to_string()))?;
        Ok(Box::new(Dtls(dimpl::Dtls::new_12(Arc::new(config), cert.clone(), now))))
    }
}

/// A DTLS connection.
struct Dtls(dimpl::Dtls);

impl fmt::Debug for Dtls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dtls")
    }
}

impl DtlsInstance for Dtls {
    fn set_active(&mut self, active: bool) {
        self.0.set_active(active);
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), DtlsImplError> {
        self.0.handle_packet(packet)
    }

    fn poll_output<'a>(&mut self, buffer: &'a mut [u8]) -> DtlsOutput<'a> {
        self.0.poll_output(buffer)
    }

    fn handle_timeout(&mut self, now: Instant) -> Result<(), DtlsImplError> {
        self.0.handle_timeout(now)
    }

    fn send_application_data(&mut self, data: &[u8]) -> Result<usize, DtlsImplError> {
        self.0.send_application_data(data)
    }

    fn is_active(&self) -> bool {
        self.0.is_active()
    }

    fn protocol_version(&self) -> Option<ProtocolVersion> {
        self.0.protocol_version()
    }

    fn is_closing(&self) -> bool {
        self.0.is_closing()
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn close(&mut self) -> Result<(), DtlsImplError> {
        self.0.close()
    }
}

fn dtls_crypto() -> DtlsCrypto {
    DtlsCrypto {
        kx_groups: &[&Group::X25519, &Group::P256, &Group::P384],
        signature_verification: &Ring,
        key_provider: &Ring,
        secure_random: &Ring,
        hash_provider: &Ring,
        hmac_provider: &Ring,
        cipher_suites: &[&Suite::Aes128, &Suite::Aes256, &Suite::ChaCha20],
        // The interface requires a value, which is never used.
        dtls13_cipher_suites: &[&Suite::ChaCha20],
    }
}

fn failed<E>(operation: CryptoOperation) -> impl FnOnce(E) -> DtlsCryptoError {
    move |_| DtlsCryptoError::OperationFailed(operation)
}

/// A cipher suite for ECDSA certificates.
#[derive(Clone, Copy, Debug)]
enum Suite {
    Aes128,
    Aes256,
    ChaCha20,
}

impl Suite {
    fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128 => &aead::AES_128_GCM,
            Self::Aes256 => &aead::AES_256_GCM,
            Self::ChaCha20 => &aead::CHACHA20_POLY1305,
        }
    }

    fn cipher(self, key: &[u8]) -> Result<Box<dyn Cipher>, DtlsCryptoError> {
        let key = UnboundKey::new(self.algorithm(), key).map_err(failed(CryptoOperation::CreateCipher))?;
        Ok(Box::new(Aead(LessSafeKey::new(key))))
    }
}

impl SupportedDtls12CipherSuite for Suite {
    fn suite(&self) -> Dtls12CipherSuite {
        match self {
            Self::Aes128 => Dtls12CipherSuite::ECDHE_ECDSA_AES128_GCM_SHA256,
            Self::Aes256 => Dtls12CipherSuite::ECDHE_ECDSA_AES256_GCM_SHA384,
            Self::ChaCha20 => Dtls12CipherSuite::ECDHE_ECDSA_CHACHA20_POLY1305_SHA256,
        }
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        match self {
            Self::Aes256 => HashAlgorithm::SHA384,
            Self::Aes128 | Self::ChaCha20 => HashAlgorithm::SHA256,
        }
    }

    /// The lengths of the MAC key, the key, and the part of the nonce that the handshake fixes, in bytes.
    fn key_lengths(&self) -> (usize, usize, usize) {
        (0, self.algorithm().key_len(), aead::NONCE_LEN - self.explicit_nonce_len())
    }

    fn explicit_nonce_len(&self) -> usize {
        match self {
            // GCM sends 8 bytes of the nonce in each record (RFC 5288, section 3); ChaCha20 derives all of it
            // (RFC 7905, section 2).
            Self::Aes128 | Self::Aes256 => 8,
            Self::ChaCha20 => 0,
        }
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, DtlsCryptoError> {
        self.cipher(key)
    }
}

impl SupportedDtls13CipherSuite for Suite {
    fn suite(&self) -> Dtls13CipherSuite {
        Dtls13CipherSuite::CHACHA20_POLY1305_SHA256
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn key_len(&self) -> usize {
        self.algorithm().key_len()
    }

    fn iv_len(&self) -> usize {
        aead::NONCE_LEN
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, DtlsCryptoError> {
        self.cipher(key)
    }

    fn encrypt_sn(&self, key: &[u8], sample: &[u8; 16]) -> [u8; 16] {
        let mut mask = [0; 16];
        let key = quic::HeaderProtectionKey::new(&quic::CHACHA20, key);
        if let Ok(protection) = key.and_then(|key| key.new_mask(sample)) {
            mask[..protection.len()].copy_from_slice(&protection);
        }
        mask
    }
}

struct Aead(LessSafeKey);

impl fmt::Debug for Aead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Aead")
    }
}

impl Cipher for Aead {
    fn encrypt(&mut self, plaintext: &mut Buf, aad: Aad, nonce: Nonce) -> Result<(), DtlsCryptoError> {
        // dimpl makes the nonces from its record counters, so it answers for their uniqueness.
        let nonce = aead::Nonce::assume_unique_for_key(nonce.0);
        let sealed = self.0.seal_in_place_append_tag(nonce, aead::Aad::from(&aad[..]), plaintext);
        sealed.map_err(failed(CryptoOperation::Encrypt))
    }

    fn decrypt(
        &mut self,
        ciphertext: &mut TmpBuf<'_>,
        aad: Aad,
        nonce: Nonce,
    ) -> Result<(), DtlsCryptoError> {
        let nonce = aead::Nonce::assume_unique_for_key(nonce.0);
        let opened = self.0.open_in_place(nonce, aead::Aad::from(&aad[..]), ciphertext.as_mut());
        let length = opened.map_err(failed(CryptoOperation::Decrypt))?.len();
        ciphertext.truncate(length);
        Ok(())
    }
}

/// A group for key exchange.
#[derive(Clone, Copy, Debug)]
enum Group {
    X25519,
    P256,
    P384,
}

impl Group {
    fn algorithm(self) -> &'static agreement::Algorithm {
        match self {
            Self::X25519 => &agreement::X25519,
            Self::P256 => &agreement::ECDH_P256,
            Self::P384 => &agreement::ECDH_P384,
        }
    }
}

impl SupportedKxGroup for Group {
    fn name(&self) -> NamedGroup {
        match self {
            Self::X25519 => NamedGroup::X25519,
            Self::P256 => NamedGroup::Secp256r1,
            Self::P384 => NamedGroup::Secp384r1,
        }
    }

    fn start_exchange(&self, mut public: Buf) -> Result<Box<dyn ActiveKeyExchange>, DtlsCryptoError> {
        let private = EphemeralPrivateKey::generate(self.algorithm(), &SystemRandom::new())
            .map_err(failed(CryptoOperation::GenerateEphemeralKey))?;
        let key = private.compute_public_key().map_err(failed(CryptoOperation::ComputePublicKey))?;
        public.clear();
        public.extend_from_slice(key.as_ref());
        Ok(Box::new(Exchange { group: *self, private, public }))
    }
}

#[derive(Debug)]
struct Exchange {
    group: Group,
    private: EphemeralPrivateKey,
    public: Buf,
}

impl ActiveKeyExchange for Exchange {
    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn complete(self: Box<Self>, peer: &[u8], secret: &mut Buf) -> Result<(), DtlsCryptoError> {
        let peer = UnparsedPublicKey::new(self.group.algorithm(), peer);
        let agreed = agreement::agree_ephemeral(self.private, &peer, |shared| {
            secret.clear();
            secret.extend_from_slice(shared);
        });
        agreed.map_err(|_| DtlsCryptoError::InvalidPublicKey(self.group.name()))
    }

    fn group(&self) -> NamedGroup {
        self.group.name()
    }
}

impl SignatureVerifier for Ring {
    fn verify_signature(
        &self,
        certificate: &[u8],
        data: &[u8],
        signature: &[u8],
        hash: HashAlgorithm,
        algorithm: SignatureAlgorithm,
    ) -> Result<(), DtlsCryptoError> {
        // Each hash may be combined with any curve; only the curve of the certificate's key matches.
        let candidates = match (algorithm, hash) {
            (SignatureAlgorithm::ECDSA, HashAlgorithm::SHA256) => {
                [webpki::ring::ECDSA_P256_SHA256, webpki::ring::ECDSA_P384_SHA256]
            }
            (SignatureAlgorithm::ECDSA, HashAlgorithm::SHA384) => {
                [webpki::ring::ECDSA_P256_SHA384, webpki::ring::ECDSA_P384_SHA384]
            }
            _ => return Err(DtlsCryptoError::UnsupportedSignatureAlgorithm(algorithm)),
        };
        let certificate = CertificateDer::from(certificate);
        let certificate = webpki::EndEntityCert::try_from(&certificate)
            .map_err(|_| DtlsCryptoError::CertificateParseFailed)?;
        let fits = |it: &_| certificate.verify_signature(*it, data, signature).is_ok();
        if candidates.iter().any(fits) {
            Ok(())
        } else {
            Err(DtlsCryptoError::OperationFailed(CryptoOperation::VerifySignature))
        }
    }
}

impl KeyProvider for Ring {
    fn load_private_key(&self, key: &[u8]) -> Result<Box<dyn SigningKey>, DtlsCryptoError> {
        // Only keys from `generate_certificate` come here, which are of this curve.
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, key, &SystemRandom::new());
        Ok(Box::new(PrivateKey(pair.map_err(|_| DtlsCryptoError::InvalidPrivateKey)?)))
    }
}

/// The key of a certificate that [`Ring`] made: P-256 and SHA-256.
#[derive(Debug)]
struct PrivateKey(EcdsaKeyPair);

impl SigningKey for PrivateKey {
    fn sign(&mut self, data: &[u8], hash: HashAlgorithm, out: &mut Buf) -> Result<(), DtlsCryptoError> {
        let key_hash = self.hash_algorithm();
        if hash != key_hash {
            return Err(DtlsCryptoError::SigningKeyHashMismatch { key_hash, requested: hash });
        }
        let signature = self.0.sign(&SystemRandom::new(), data).map_err(failed(CryptoOperation::Sign))?;
        out.clear();
        out.extend_from_slice(signature.as_ref());
        Ok(())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn supported_hash_algorithms(&self) -> &[HashAlgorithm] {
        &[HashAlgorithm::SHA256]
    }
}

impl SecureRandom for Ring {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), DtlsCryptoError> {
        SystemRandom::new().fill(buffer).map_err(failed(CryptoOperation::FillRandom))
    }
}

impl HashProvider for Ring {
    fn create_hash(&self, algorithm: HashAlgorithm) -> Box<dyn HashContext> {
        let algorithm = if algorithm == HashAlgorithm::SHA384 { &digest::SHA384 } else { &digest::SHA256 };
        Box::new(Hash(digest::Context::new(algorithm)))
    }
}

struct Hash(digest::Context);

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash")
    }
}

impl HashContext for Hash {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn clone_and_finalize(&self, out: &mut Buf) {
        out.clear();
        // The handshake's hash is read in the middle of it, and goes on.
        out.extend_from_slice(self.0.clone().finish().as_ref());
    }
}

impl HmacProvider for Ring {
    fn hmac(
        &self,
        hash: HashAlgorithm,
        key: &[u8],
        data: &[u8],
        out: &mut [u8],
    ) -> Result<usize, DtlsCryptoError> {
        let algorithm = match hash {
            HashAlgorithm::SHA256 => hmac::HMAC_SHA256,
            HashAlgorithm::SHA384 => hmac::HMAC_SHA384,
            other => return Err(DtlsCryptoError::UnsupportedHmacHash(other)),
        };
        let tag = hmac::sign(&hmac::Key::new(algorithm, key), data);
        let tag = tag.as_ref();
        let out = out.get_mut(..tag.len());
        out.ok_or(DtlsCryptoError::OperationFailed(CryptoOperation::ComputeHmac))?.copy_from_slice(tag);
        Ok(tag.len())
    }
}

/// DTLS negotiates SRTP, because LiveKit's server requires it. Its ciphers are never used.
impl SrtpProvider for Ring {
    fn aes_128_cm_sha1_80(&self) -> &'static dyn SupportedAes128CmSha1_80 {
        &NoMedia
    }

    fn aead_aes_128_gcm(&self) -> &'static dyn SupportedAeadAes128Gcm {
        &NoMedia
    }

    fn aead_aes_256_gcm(&self) -> &'static dyn SupportedAeadAes256Gcm {
        &NoMedia
    }

    fn srtp_aes_128_ecb_round(&self, _: &[u8], _: &[u8], _: &mut [u8]) {}

    fn srtp_aes_256_ecb_round(&self, _: &[u8], _: &[u8], _: &mut [u8]) {}
}

/// An SRTP cipher that fails.
#[derive(Debug)]
struct NoMedia;

fn no_media<T>() -> Result<T, CryptoError> {
    Err(CryptoError::Other("media is not supported".to_owned()))
}

impl SupportedAes128CmSha1_80 for NoMedia {
    fn create_cipher(&self, _: [u8; 16], _: bool) -> Box<dyn Aes128CmSha1_80Cipher> {
        Box::new(NoMedia)
    }
}

impl SupportedAeadAes128Gcm for NoMedia {
    fn create_cipher(&self, _: [u8; 16], _: bool) -> Box<dyn AeadAes128GcmCipher> {
        Box::new(NoMedia)
    }
}

impl SupportedAeadAes256Gcm for NoMedia {
    fn create_cipher(&self, _: [u8; 32], _: bool) -> Box<dyn AeadAes256GcmCipher> {
        Box::new(NoMedia)
    }
}

impl Aes128CmSha1_80Cipher for NoMedia {
    fn encrypt(&mut self, _: &[u8; 16], _: &[u8], _: &mut [u8]) -> Result<(), CryptoError> {
        no_media()
    }

    fn decrypt(&mut self, _: &[u8; 16], _: &[u8], _: &mut [u8]) -> Result<(), CryptoError> {
        no_media()
    }
}

impl AeadAes128GcmCipher for NoMedia {
    fn encrypt(&mut self, _: &[u8; 12], _: &[u8], _: &[u8], _: &mut [u8]) -> Result<(), CryptoError> {
        no_media()
    }

    fn decrypt(&mut self, _: &[u8; 12], _: &[&[u8]], _: &[u8], _: &mut [u8]) -> Result<usize, CryptoError> {
        no_media()
    }
}

impl AeadAes256GcmCipher for NoMedia {
    fn encrypt(&mut self, _: &[u8; 12], _: &[u8], _: &[u8], _: &mut [u8]) -> Result<(), CryptoError> {
        no_media()
    }

    fn decrypt(&mut self, _: &[u8; 12], _: &[&[u8]], _: &[u8], _: &mut [u8]) -> Result<usize, CryptoError> {
        no_media()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verify(certificate: &DtlsCert, data: &[u8], signature: &[u8]) -> Result<(), DtlsCryptoError> {
        Ring.verify_signature(
            &certificate.certificate,
            data,
            signature,
            HashAlgorithm::SHA256,
            SignatureAlgorithm::ECDSA,
        )
    }

    /// Known answers for hashes, key derivation, signatures, ciphers and key exchange.
    #[test]
    fn dimpl_accepts_the_provider() {
        dtls_crypto().validate().unwrap();
    }

    #[test]
    fn signature_is_accepted_for_its_data_and_key_only() {
        let certificate = Ring.generate_certificate().unwrap();
        let other = Ring.generate_certificate().unwrap();
        assert_ne!(certificate.certificate, other.certificate);
        let mut key = Ring.load_private_key(&certificate.private_key).unwrap();
        let mut signature = Buf::new();
        key.sign(b"data", HashAlgorithm::SHA256, &mut signature).unwrap();
        assert_eq!(verify(&certificate, b"data", &signature), Ok(()));
        assert!(verify(&certificate, b"date", &signature).is_err());
        assert!(verify(&other, b"data", &signature).is_err());
        assert!(verify(&certificate, b"data", &signature[1..]).is_err());
        assert!(key.sign(b"data", HashAlgorithm::SHA384, &mut signature).is_err());
    }

    #[test]
    fn changed_record_is_refused() {
        let aad = || Aad(b"header".iter().copied().collect());
        for suite in [Suite::Aes128, Suite::Aes256, Suite::ChaCha20] {
            let mut cipher = suite.cipher(&vec![7; suite.algorithm().key_len()]).unwrap();
            let mut record = Buf::new();
            record.extend_from_slice(b"text");
            cipher.encrypt(&mut record, aad(), Nonce([1; 12])).unwrap();
            assert_eq!(record.len(), 4 + TAG);
            let mut sealed = record.to_vec();
            let mut opened = TmpBuf::new(&mut sealed);
            cipher.decrypt(&mut opened, aad(), Nonce([1; 12])).unwrap();
            assert_eq!(opened.as_ref(), b"text");
            for at in 0..record.len() {
                let mut changed = record.to_vec();
                changed[at] ^= 1;
                assert!(cipher.decrypt(&mut TmpBuf::new(&mut changed), aad(), Nonce([1; 12])).is_err());
            }
            let mut short = [0; TAG - 1];
            assert!(cipher.decrypt(&mut TmpBuf::new(&mut short), aad(), Nonce([1; 12])).is_err());
        }
    }
}
