use super::*;

const NEUTRAL: SampleParams = SampleParams {
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    repetition_penalty: 1.0,
    presence_penalty: 0.0,
    frequency_penalty: 0.0,
    seed: 0,
    choice: 0,
};

fn row(params: &SampleParams) -> SampleRow<'_> {
    SampleRow { params, position: 0, seen: &[], bias: &[], mask: None, logprobs: None }
}

/// Random numbers for the tests: splitmix64 by way of the noise's own mixer would test itself, so another generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n
    }

    /// Between -1 and 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Logits with ties, and some that are impossible.
    fn logits(&mut self, n: usize) -> Vec<f32> {
        let step = [0.0, 0.5, 4.0][self.below(3)];
        let mut logits: Vec<f32> = (0..n).map(|_| self.unit() * 12.0).collect();
        if step > 0.0 {
            logits.iter_mut().for_each(|l| *l = (*l / step).round() * step);
        }
        for _ in 0..self.below(4) {
            let i = self.below(n);
            logits[i] = [f32::NAN, f32::NEG_INFINITY, -f32::NAN][self.below(3)];
        }
        logits
    }
}

/// The naive twin: (token, probability) of all that may be drawn, by full sorts in double precision.
fn distribution(logits: &[f32], row: &SampleRow<'_>) -> Vec<(u32, f64)> {
    let p = row.params;
    let mut all = Vec::new();
    for (i, &logit) in logits.iter().enumerate() {
        let token = i as u32;
        let mut l = logit;
        l += row.bias.iter().find(|b| b.0 == token).map_or(0.0, |b| b.1);
        if let Some(mask) = row.mask
            && (mask.len() * 32 <= i || mask[i / 32] & (1 << (i % 32)) == 0)
        {
            continue;
        }
        if let Some(&(_, _, times)) = row.seen.iter().find(|s| s.0 == token) {
            l = if l > 0.0 { l / p.repetition_penalty } else { l * p.repetition_penalty };
            if times > 0 {
                l -= p.presence_penalty + p.frequency_penalty * times as f32;
            }
        }
        if !l.is_nan() && l > f32::NEG_INFINITY {
            all.push((token, l));
        }
    }
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    if p.temperature == 0.0 {
        return vec![(all[0].0, 1.0)];
    }
    if p.top_k > 0 {
        all.truncate(p.top_k as usize);
    }
    let best = all[0].1;
    let weigh = |l: f32| f64::from((l - best) / p.temperature).exp();
    let total: f64 = all.iter().map(|c| weigh(c.1)).sum();
    if p.top_p < 1.0 {
        let mut sum = 0.0;
        let mut kept = 0;
        while kept == 0 || (sum < f64::from(p.top_p) * total && kept < all.len()) {
            sum += weigh(all[kept].1);
            kept += 1;
        }
        all.truncate(kept);
    }
    all.retain(|c| c.1 == best || weigh(c.1) >= f64::from(p.min_p));
    let total: f64 = all.iter().map(|c| weigh(c.1)).sum();
    all.iter().map(|c| (c.0, weigh(c.1) / total)).collect()
}

/// The naive twin of the draw: the argmax over the distribution, noise for every token.
fn draw_naively(logits: &[f32], row: &SampleRow<'_>) -> u32 {
    let noise = Noise::new(row.params.seed, row.params.choice, row.position);
    let score = |c: &(u32, f64)| c.1.ln() + noise.gumbel(c.0);
    let all = distribution(logits, row);
    all.iter().max_by(|a, b| score(a).total_cmp(&score(b))).unwrap().0
}

/// What a case is made of beside the parameters.
struct Case {
    logits: Vec<f32>,
    params: SampleParams,
    seen: Vec<(u32, u32, u32)>,
    bias: Vec<(u32, f32)>,
    mask: Option<Vec<u32>>,
    position: u64,
}

impl Case {
    fn random(r: &mut Random) -> Case {
        let n = [1usize, 2, 31, 32, 33, 64, 65, 300, 2000][r.below(9)];
        let mut tokens: Vec<u32> = (0..n as u32 + 3).collect(); // some beyond the vocabulary
        for i in (1..tokens.len()).rev() {
            tokens.swap(i, r.below(i + 1));
        }
        let (seen, bias) = (r.below(tokens.len().min(40)), r.below(tokens.len().min(20)));
        let mut mask: Vec<u32> = (0..n.div_ceil(32)).map(|_| r.next() as u32).collect();
        mask[0] |= 1;
        let mut case = Case {
            logits: r.logits(n),
            params: SampleParams {
                temperature: [0.0, 0.3, 1.0, 2.5][r.below(4)],
                top_k: [0, 1, 3, 20, 64, 5000][r.below(6)],
                top_p: [0.0, 0.1, 0.83, 0.999, 1.0][r.below(5)],
                min_p: [0.0, 0.0007, 0.11, 1.0][r.below(4)],
                repetition_penalty: [1.0, 1.3, 0.8][r.below(3)],
                presence_penalty: [0.0, 1.5, -0.5][r.below(3)],
                frequency_penalty: [0.0, 0.25][r.below(2)],
                seed: r.next(),
                choice: r.below(3) as u32,
            },
            seen: tokens[..seen].iter().map(|&t| (t, t % 3, t % 4)).collect(),
            bias: tokens[..bias].iter().map(|&t| (t, t as f32 % 5.0 - 2.0)).collect(),
            mask: (r.below(2) == 0).then_some(mask),
            position: r.next() >> r.below(64),
        };
        case.logits[0] = 1.25; // allowed by every mask: something is possible
        case
    }

    fn row(&self) -> SampleRow<'_> {
        SampleRow {
            params: &self.params,
            position: self.position,
            seen: &self.seen,
            bias: &self.bias,
            mask: self.mask.as_deref(),
            logprobs: None,
        }
    }
}

#[test]
fn draws_equal_the_naive_twins() {
    let mut random = Random(0x9b97_f4a7);
    for i in 0..20_000 {
        let case = Case::random(&mut random);
        let (got, want) = (sample(&case.logits, &case.row()).token, draw_naively(&case.logits, &case.row()));
        assert_eq!(got, want, "case {i}: {:?}", case.params);
    }
}

/// Many draws of one row see every token that the filters leave, and no other, each as often as it should be.
#[test]
fn draws_follow_the_distribution() {
    let mut random = Random(42);
    let logits: Vec<f32> = (0..200).map(|_| random.unit() * 4.0).collect();
    let seen: Vec<_> = (0..50).map(|t| (t, 1, t % 3)).collect();
    let mask = [0xffff_fff0, 0xffff, 0xffff_ffff];
    let settings = [
        NEUTRAL,
        SampleParams { temperature: 0.5, ..NEUTRAL },
        SampleParams { top_k: 12, ..NEUTRAL },
        SampleParams { top_p: 0.6, temperature: 0.8, ..NEUTRAL },
        SampleParams { min_p: 0.2, temperature: 1.7, ..NEUTRAL },
        SampleParams { top_k: 40, top_p: 0.9, min_p: 0.1, ..NEUTRAL },
        SampleParams { repetition_penalty: 1.2, presence_penalty: 0.4, frequency_penalty: 0.1, top_k: 30, ..NEUTRAL },
    ];
    for (i, params) in settings.iter().enumerate() {
        for masked in [false, true] {
            let row = |position| SampleRow { position, seen: &seen, mask: masked.then_some(&mask[..]), ..row(params) };
            let exact = distribution(&logits, &row(0));
            let draws = 20_000u32;
            let mut counts = vec![0u32; logits.len()];
            for position in 0..u64::from(draws) {
                counts[sample(&logits, &row(position)).token as usize] += 1;
            }
            let (mut chi, mut classes, mut rest) = (0.0, 0.0, (f64::from(draws), f64::from(draws)));
            let term = |got: f64, want: f64| (got - want).powi(2) / want;
            for (token, p) in exact {
                let (got, want) = (f64::from(counts[token as usize]), p * f64::from(draws));
                counts[token as usize] = 0;
                if want >= 5.0 {
                    chi += term(got, want);
                    classes += 1.0;
                    rest = (rest.0 - got, rest.1 - want);
                }
            }
            assert!(counts.iter().all(|&c| c == 0), "setting {i}: drew what is filtered out");
            if rest.1 >= 5.0 {
                chi += term(rest.0, rest.1);
                classes += 1.0;
            }
            // Four standard deviations above the mean of a chi-square of so many degrees of freedom.
            let freedom = f64::max(classes - 1.0, 1.0);
            assert!(chi < freedom + 4.0 * (2.0 * freedom).sqrt(), "setting {i}: {chi} of {freedom}");
        }
    }
}

#[test]
fn greedy_takes_the_lower_of_equals_and_never_a_nan() {
    let greedy = SampleParams { temperature: 0.0, ..NEUTRAL };
    let nan = f32::NAN;
    let token = |logits: &[f32]| sample(logits, &row(&greedy)).token;
    assert_eq!(token(&[1.0, 3.0, 3.0, 2.0]), 1);
    assert_eq!(token(&[nan, -5.0, nan, -5.0]), 1);
    assert_eq!(token(&[f32::NEG_INFINITY, f32::MIN]), 1);
    assert_eq!(token(&[f32::MAX, f32::INFINITY, f32::INFINITY]), 0);
    assert_eq!(token(&[-0.0, 0.0]), 0);
}

#[test]
fn rows_without_any_possible_token_say_so_and_give_the_lowest_allowed() {
    for params in [NEUTRAL, SampleParams { temperature: 0.0, ..NEUTRAL }] {
        let with = |logits: &[f32], mask| {
            let row = SampleRow { mask, logprobs: Some(2), ..row(&params) };
            sample(logits, &row)
        };
        let nan = with(&[f32::NAN; 40], None);
        assert_eq!((nan.token, nan.logprob, nan.top.len()), (0, Some(f32::NEG_INFINITY), 0));
        assert!(nan.impossible && with(&[1.0; 40], Some(&[])).impossible && !with(&[1.0; 40], None).impossible);
        assert_eq!(with(&[f32::NEG_INFINITY; 40], Some(&[0, 16])).token, 36);
        assert_eq!(with(&[1.0; 40], Some(&[0, 0])).token, 0);
        assert_eq!(with(&[1.0; 40], Some(&[])).token, 0);
        assert_eq!(with(&[], None).token, 0);
    }
}

#[test]
fn infinities_never_make_nan_of_the_rest() {
    let params = SampleParams { temperature: 1e-30, top_p: 0.9, ..NEUTRAL };
    let logits = [0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX];
    for position in 0..50 {
        let token = sample(&logits, &SampleRow { position, ..row(&params) }).token;
        assert!(token == 1 || token == 3);
    }
    let biased = SampleRow { bias: &[(0, f32::INFINITY), (2, f32::INFINITY)], ..row(&NEUTRAL) };
    assert_eq!(sample(&logits[..3], &biased).token, sample(&[1.0, 1.0], &row(&NEUTRAL)).token);
}

#[test]
fn logprobs_are_the_models_own() {
    let mut random = Random(3);
    let logits = random.logits(500);
    let params = SampleParams { top_k: 2, temperature: 0.1, repetition_penalty: 9.0, ..NEUTRAL };
    let sampled = |n| sample(&logits, &SampleRow { logprobs: Some(n), seen: &[(1, 1, 1)], ..row(&params) });
    let all = sampled(1000);
    let sum: f64 = all.top.iter().map(|t| f64::from(t.1).exp()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    let own = all.top.iter().find(|t| t.0 == all.token).unwrap();
    assert_eq!(all.logprob, Some(own.1));
    let best = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().filter(|l| !l.is_nan()).map(|&l| (f64::from(l) - best).exp()).sum();
    assert!((f64::from(all.top[0].1) + sum.ln()).abs() < 1e-6);
    assert!(all.top.is_sorted_by(|a, b| a.1 > b.1 || (a.1 == b.1 && a.0 < b.0)));
    for n in [0, 1, 5, 64, 65, 200] {
        assert_eq!(sampled(n).top, all.top[..n]);
    }
}

#[test]
fn a_wide_vocabulary_is_filtered_like_a_narrow_one() {
    let mut random = Random(11);
    let logits: Vec<f32> = (0..248_320).map(|_| random.unit() * 8.0).collect();
    for params in [
        SampleParams { top_k: 20, top_p: 0.95, ..NEUTRAL },
        SampleParams { top_p: 0.95, ..NEUTRAL },
        SampleParams { temperature: 0.6, ..NEUTRAL },
    ] {
        for position in 0..3 {
            let row = SampleRow { position, ..row(&params) };
            assert_eq!(sample(&logits, &row).token, draw_naively(&logits, &row));
        }
    }
}

#[test]
fn ranks_order_as_logits_then_ids_and_can_be_taken_back() {
    let logits = [f32::MAX, 3.5, 1e-40, 0.0, -1e-40, -1.0, -f32::MAX];
    let all: Vec<Candidate> = (0..14).map(|i| Candidate { token: i as u32 % 2, logit: logits[i / 2] }).collect();
    assert!(all.is_sorted_by_key(|c| c.rank()));
    assert!(all.iter().all(|c| Candidate::of_rank(c.rank()) == *c));
    assert_eq!(Candidate { token: 1, logit: -0.0 }.rank(), Candidate { token: 1, logit: 0.0 }.rank());
}
