// Random starts: NumPy's default_rng(seed) to the last bit, so that a kind and a seed mean the same points in the page, in Python
// (attractor.Tokens.sample) and on the command line. Plain functions without a document.
"use strict";

const LONG = (1n << 64n) - 1n, WIDE = (1n << 128n) - 1n;

// NumPy's SeedSequence (after M. E. O'Neill's seed_seq): eight words of 32 bits from a whole number up to 2^53
function seedWords(seed) {
  const entropy = [seed % 4294967296, Math.floor(seed / 4294967296)];
  let constant = 0x43b0d7e5;
  const hash = (value) => {
    value = (value ^ constant) >>> 0;
    constant = Math.imul(constant, 0x931e8875) >>> 0;
    value = Math.imul(value, constant) >>> 0;
    return (value ^ (value >>> 16)) >>> 0;
  };
  const mix = (x, y) => {
    const value = (Math.imul(x, 0xca01f9dd) - Math.imul(y, 0x4973f715)) >>> 0;
    return (value ^ (value >>> 16)) >>> 0;
  };
  const pool = Array.from({ length: 4 }, (_, k) => hash(entropy[k] || 0));
  for (let from = 0; from < 4; from++) {
    for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mix(pool[to], hash(pool[from]));
  }
  let last = 0x8b51f9dd;
  return Array.from({ length: 8 }, (_, k) => {
    let value = (pool[k % 4] ^ last) >>> 0;
    last = Math.imul(last, 0x58f38ded) >>> 0;
    value = Math.imul(value, last) >>> 0;
    return (value ^ (value >>> 16)) >>> 0;
  });
}

// Tables of the ziggurat of the normal distribution in NumPy (numpy/random/src/distributions/ziggurat_constants.h): limits of the
// whole numbers, widths of the layers, and the density; 256 little-endian doubles each
const ZIGGURAT = [
  "1N5LAHvmLUMAAAAAAAAAAFCN9zF9EShDhAJ79alGK0PU3YP97KMsQ/zup9OrZC1DcpX9ApfeLUNUifQVjjIuQzCW/8Paby5DuErCKo2eLkMsRzfIS8MuQ0gtp+r04C5DNIlQ2GX5LkOmr8YY4g0vQ7xLBq9MHy9DtKGbjkkuL0MS6rcPUjsvQ+j0A+vBRi9D8Je2vN9QL0O4qabB4lkvQx5yMc72YS9DjOmmGj9pL0Pu/M1G2G8vQxzKQ9PZdS9D2hcIOld7L0Ou2P7BYIAvQ5BEbyAEhS9DorfE9UyJL0Ni3PUuRY0vQ0gtUVL1kC9DCr2XvGSUL0M0RgTSmZcvQ4hz8CWami9DMtkfm2qdL0Ngkjt+D6AvQ8yJrZuMoi9DoOjFUeWkL0M8kuGfHKcvQ/BoITM1qS9Dph4kcTGrL0PYMx2BE60vQ2TQkVPdri9D0BH2qJCwL0MYWVoXL7IvQ6RbTw+6sy9DGL0g4DK1L0NAXIC7mrYvQ6D5t7jyty9D+jRz1zu5L0M65TACd7ovQyBfaBCluy9DyD5tyMa8L0Ocohrh3L0vQ1xoTQPovi9DgNozy+i/L0PkSXjJ38AvQ7BES4TNwS9DmHBReLLCL0Myf3gZj8MvQ1Q5ttNjxC9DIje0CzHFL0MMg2of98UvQ5Qaq2a2xi9DVACgM2/HL0P+Wj3TIcgvQ2juqI3OyC9DuBKYpnXJL0NIKqVdF8ovQ/B4ne6zyi9DJCTIkUvLL0MSDSd83ssvQ/Agst9szC9D8KqN6/bML0NUIzzMfM0vQ+Tpy6v+zS9DBE4BsnzOL0NyPH0E984vQ0Th4MZtzy9DhoTuGuHPL0MY4acgUdAvQ3Quava90C9DyBAIuSfRL0N4neGDjtEvQ+yd+nDy0S9DOjYPmVPSL0PUEacTstIvQ0Q1J/cN0y9DzJDiWGfTL0OqbSlNvtMvQ/jMV+cS1C9DSM3iOWXUL0NYKmVWtdQvQzToqk0D1S9D4Dm8L0/VL0NAsucLmdUvQ3jMy/Dg1S9DJthf7CbWL0OUVPwLa9YvQ2jFYlyt1i9D9AnF6e3WL0MoQMy/LNcvQ/g6n+lp1y9DoJPocaXXL0N8XNxi39cvQ9B7PcYX2C9DKrRipU7YL0OmXzsJhNgvQyzjU/q32C9D6N3ZgOrYL0NoGaCkG9kvQyQ+Im1L2S9D/E+I4XnZL0Mq9qkIp9kvQ2aREenS2S9DbiP/iP3ZL0NQCmvuJtovQwaSCB9P2i9DmF5IIHbaL0PcsFr3m9ovQ7qHManA2i9D0J+COuTaL0MEU8mvBtsvQ5BZSA0o2y9DCG4LV0jbL0No1eiQZ9svQ6TMgr6F2y9DpNxI46LbL0OmFXkCv9svQwAzIR/a2y9DKKgfPPTbL0OIlyRcDdwvQwy0soEl3C9DwA0grzzcL0NIypbmUtwvQ3jJFSpo3C9DeDZxe3zcL0PoBVPcj9wvQwxhO06i3C9Dgv6A0rPcL0NcaFFqxNwvQ+IvsRbU3C9D9A582OLcL0ME92Sw8NwvQ3QN9p793C9DZJWQpAndL0OGxmzBFN0vQ6KQmfUe3S9DtEv8QCjdL0PUU1CjMN0vQ7iQJhw43S9D6Ofkqj7dL0NcmcVORN0vQ1iF1gZJ3S9D4lr40UzdL0P0rd2uT90vQxT0CZxR3S9DdmbQl1LdL0MgyFKgUt0vQ7wOgLNR3S9DqOwSz0/dL0NIOpDwTN0vQwY9RRVJ3S9DtMlFOkTdL0NIQGpcPt0vQ1xeTXg33S9DyOVJii/dL0N0FHiOJt0vQyzqqoAc3S9D9DhtXBHdL0P6e/4cBd0vQxBxT7333C9D/m/+N+ncL0O8elOH2dwvQ/wAPKXI3C9DEFFGi7bcL0Nsr5wyo9wvQ54NAJSO3C9DoFjCp3jcL0OwVcBlYdwvQwoEW8VI3C9DtHhwvS7cL0OOKFREE9wvQ5iTxk/22y9D2ELs1NfbL0P8CETIt9svQ6ZznB2W2y9D6FkIyHLbL0OScdK5TdsvQxrTb+Qm2y9DbFBxOP7aL0NWgHOl09ovQwBcDRqn2i9DREi9g3jaL0OwX9TOR9ovQ4jMX+YU2i9DaPwPtN/ZL0Nwbx0gqNkvQ2jdKhFu2S9DgmEkbDHZL0PwUhsU8tgvQ/xjHuqv2C9DxJINzWrYL0NqZmmZItgvQ6DfHCnX1y9DJG1BU4jXL0O4GdzrNdcvQ4QKk8Pf1i9DPD9ap4XWL0OWWhZgJ9YvQ9IFNLLE1S9DrkQyXV3VL0NMxh0b8dQvQ8rn+p9/1C9D7LMbmQjUL0N2rF6si9MvQ0iPUncI0y9DUI46jn7SL0Osi+167dEvQ8zRibtU0S9D1GP1wLPQL0OAUiHtCdAvQ4BnBJFWzy9DStU+6pjOL0MERFUg0M0vQ7BXbUH7zC9D/GBwPhnML0OE7nHmKMsvQwDlLuEoyi9DsOhtqBfJL0NuPPp/88cvQzhj3Wu6xi9D/MlfJGrFL0OuqjIHAMQvQygG8QR5wi9DYM/cidHAL0NU41ZgBb8vQ1T9/YoPvS9D+neME+q6L0MmflPKjbgvQwQFXPDxtS9D6nRlwwuzL0MInpHeza8vQxbKelsnrC9DJODFkwKoL0NYj2lPQ6MvQzw/7AjEnS9DZCO8sFGXL0NEWprdpI8vQ9pFPF5Whi9DdHCBA8t6L0NoqACIDWwvQ+hQVLCAWC9DMIsCPC49L0P4O0iR9BMvQ1hg4O+LzS5DlDhmlrQ0LkM=",
  "edkVeDtJzzzG9v3jC42LPLRbLDyvUJI8YTtEOLl8lTwMpy/o/AGYPLzQTC4MI5o892E4L00AnDx0cnRaL6ydPMPVTC1IMp88rbuOJzJNoDxDXQI7BfWgPHc2QZemkqE89Rp6j6InojyA2GM4LrWiPPWRV8A/PKM8L7GiwZ69ozxVm/+N7zmkPKf+PTa7saQ8dNMaYnUlpTyWzgengJWlPOp+2c8xAqY8PXyjYdJrpjxwBQCSotKmPKb4RtPaNqc8dyqzEK2YpzxD9UatRfinPHcKQ1PMVag8mnZ7nmSxqDyYz06pLgupPOoeLIJHY6k8RsU4jsm5qTwsp6TczA6qPFnNd21nYqo8MBYQbq20qjycbBNtsQWrPCl6QoeEVas8Op9Sjjakqzwygr8q1vGrPPNOWflwPqw8YTsypROKrDyLJnL+ydSsPEi3gA6fHq08EB/kKZ1nrTzDuCMAzq+tPFN28ak69608/u3Stes9rjwAb3oz6YOuPM6C+b06ya48JmLwhOcNrzyI9thU9lGvPK7Xh55tla88rC76fVPYrzzsNELgVg2wPJqPOfVALrA8/KUWnupOsDwQoHJbVm+wPAv0cZCGj7A8E2G8hH2vsDx/zEtmPc+wPGsIFkvI7rA87hWVMiAOsTy+DzEHRy2xPEGRjp8+TLE8HiDEvwhrsTw02ngap4mxPIht7lEbqLE8yyr4+GbGsTwu1OCTi+SxPJ+gQJmKArI86cbEcmUgsjwfw+l9HT6yPPtrqQy0W7I8f9MdZip5sjwb1xnHgZayPNouuGK7s7I8U7jhYtjQsjyOqcvo2e2yPNdIbg3BCrM8MLn04Y4nszyhXiZwRESzPNVSyrriYLM8algFvmp9szxksrJv3ZmzPAM9uL87trM84B1WmIbSszyDWnLevu6zPHSe4HHlCrQ8XXSmLfsmtDykMDzoAEO0PF3HynP3XrQ8NsNmnt96tDwvj0gyupa0PF1BAvaHsrQ83BGzrEnOtDwFpjgWAOq0PGJVXu+rBbU8WosK8k0htTxPZmrV5jy1PMiyG053WLU8eF9VDgB0tTwUhQ7GgY+1PFkbJCP9qrU8PXN90XLGtTzTjC974+G1PDhen8hP/bU8wx+jYLgYtjyisKLoHTS2PAsmtwSBT7Y8cpbJV+Jqtjw3MbGDQoa2PLGyUCmiobY8u0Oz6AG9tjxS0yhhYti2PFT4YTHE87Y862iL9ycPtzzGFGlRjiq3PNzucNz3Rbc8H3PlNWVhtzxJ9O/61ny3PJO9ushNmLc8CRSLPMqztzz7ItvzTM+3POfec4zW6rc8H+qGpGcGuDx2hsjaACK4PBWfic6iPbg8vfXRH05ZuDzFfnpvA3W4PC33R1/DkLg8Q8AFko6suDycDKGrZci4PCdqRFFJ5Lg8j7VzKToAuTxHgyjcOBy5PPwK7xJGOLk8iqIDeWJUuTzu1XC7jnC5PDEqLonLjLk8v5k/kxmpuTws2dWMecW5PBF0byvs4bk8StL6JnL+uTySNvk5DBu6PFvIoiG7N7o8iLsLnn9UujykqUpyWnG6PD0xoGRMjro8CPGfPlarujzO9VrNeMi6PDazi+G05bo8GqHDTwsDuzxbmJrwfCC7PAAM4KAKPrs8Az3OQbVbuzwniT+5fXm7PDz35fFkl7s8biWF22u1uzyiwC5rk9O7PIOugZvc8bs8oBbsbEgQvDwtevDl1y68PBwNbhOMTbw8BYfsCGZsvDwXpuvgZou8PKuiNr2Pqrw8kNY7x+HJvDw34GgwXum8PG6PizIGCb08IO83ENsovTxHxjMV3ki9PCPx55YQab08pfvX9HOJvTxwbiCZCaq9PA5J/PjSyr08Ny5SldHrvTwc0kn7Bg2+PPZG6sR0Lr48iNHBmRxQvjwl/pcvAHK+PAq/KkshlL48CG/3wIG2vjw6pxB2I9m+PKnsAWEI/L48IVPCijIfvzxtTbcPpEK/PGgBySBfZr88gpeJBGaKvzy/InEYu66/PIXnL9Jg0788C/YYwVn4vzx1oNNH1A7APEfJjwKoIcA8qwKpg6k0wDzH9T5O2kfAPH6zrfY7W8A8aCanI9BuwDwXLmOPmILAPFSi6AiXlsA8xMBxdc2qwDxI1O7RPb/APDA9qjTq08A8k2URz9TowDy2n6bv//3APEFwIARuE8E8NV27myEpwTxtCcRpHT/BPDsuYEhkVcE88+6dO/lrwTxhEtJ034LBPKzrTlYamsE8ji9/d62xwTyUpnGpnMnBPDmu5Pvr4cE8Adniwp/6wTyBzASdvBPCPO7Tb3pHLcI8JJyspEVHwjzgWHbHvGHCPC5ZqPqyfMI8eA53zS6YwjxSCipTN7TCPJfbljHU0MI89XipsQ3uwjzurlbS7AvDPKOkaF57KsM8oxKuBcRJwzxAqDN60mnDPApBVpKzisM8+oiucHWswzymBBezJ8/DPHX0YKrb8sM82uW5nKQXxDyUXlQVmD3EPBU6p0TOZMQ8vEOcdWKNxDwnWmudc7fEPAKJzQ0l48Q8QazpU58QxTxCfjpSEUDFPBvkSqmxccU82Y1xi8ClxTz+0DokitzFPEwehs9pFsY86moAe85TxjzD5Z++QJXGPDLiCY1r28Y8NHpf8CgnxzxzBglWlXnHPIzO1vQt1Mc8NPIpBQM5yDwUfKq/D6vIPJZEb5TgLsk8q1dAAe7LyTxad5R43I/KPLH9eDgfmMs8M60JgrQ7zTw=",
  "AAAAAAAA8D+H8HnJakTvPxWpbFtUt+4/d/An4BE/7j+V3gSnb9PtP/K8VwaScO0/3BmheEkU7T/rLaeoM73sP394qc5eauw/6rru2Rwb7D+C3OFO687rP1L1jzplhes/EN00gjo+6z+i6Gw/KvnqPwQlevH+teo/4clQ1Yt06j8Pr/X9qjTqP9gfZe479uk/gQYkjSK56T/BemFXRn3pP0d6G8KRQuk/T3ExvfEI6T+oCuZPVdDoPwLfukitmOg/rLw3/Oth6D9uz1YPBSzoP8viIEvt9uc/WGicd5rC5z/VsKA8A4/nP1bYcAcfXOc/Em0/9OUp5z/ueuq6UPjmP4laY55Yx+Y/KjtRXveW5j8j45IqJ2fmPxgMVZjiN+Y/ZSaAmCQJ5j9q/0pv6NrlP4lcyKwpreU/j41MJuR/5T9Gno3wE1PlP9VsZVq1JuU/Z7Yg6MT65D/ATklPP8/kP3hS3HIhpOQ/ElDfX2h55D95NklKEU/kP+NfNYoZJeQ/gltYmX774z+jMa8QPtLjPw7NYqZVqeM/1QDaK8OA4z/pUPWLhFjjPzU6cMmXMOM/7zhk/foI4z/uO+pVrOHiP0qV1xSquuI/Fc2TjvKT4j/tBAUphG3iP4TbkFpdR+I/8vcvqXwh4j8glpKp4PvhP2mZVP6H1uE/EdE/V3Gx4T9QPJtwm4zhP9o5hhIFaOE/nKleEK1D4T84HzFIkh/hPxNZMqKz++A/oEJBEBDY4D+u2XCNprTgP4FdmR12keA/NjzwzH1u4D8uP6avvEvgPyqCi+ExKeA/xMq4hdwG4D+hvXuMd8nfP8oAqaedhd8/83ovyylC3z+Vj35xGv/eP1QfvSBuvN4/xcNOaiN63j+Fm1/qODjePwk6dket9t0/sVYLMn+13T8z3iZkrXTdP4AQAqE2NN0/bVuutBn03D9IqMBzVbTcP8fXALvodNw/uCwdb9I13D8XamF8EffbP5FtcdakuNs/GxMHeIt62z/KMbNixDzbP1KFoZ5O/9o/nlpfOinC2j+A2KRKU4XaP03AIOrLSNo/PoRGOZIM2j/fkx5epdDZP8bAGIQEldk/k5/g265Z2T8XyzObox7ZPxXxufzh49g/iJHeP2mp2D+2WqyoOG/YP9kNqn9PNdg/Edm4Ea371z+wFPSvUMLXP+tSkq85idc/7bHHaWdQ1z9MYak72RfXP6pMEoaO39Y/Id6IrYan1j/iyyUawW/WPxXlezc9ONY/yNKAdPoA1j9EwnZD+MnVP77u1hk2k9U/AAE9cLNc1T/tO1PCbybVP5Jtv45q8NQ/opwQV6O61D/Uaq2fGYXUP/4kw+/MT9Q/GXo10bwa1D/b0o7Q6OXTP65D8XxQsdM/eRMIaPN80z+e0fkl0UjTPy/2Wk3pFNM/Zgchdzvh0j/dP5Y+x63SPx6xTUGMetI/id4XH4pH0j+ezPd5wBTSPxaBGPYu4tE/UPDCOdWv0T/oVFTtsn3RP2fuNLvHS9E/IyTPTxMa0T/ECYdZlejQP9pCsohNt9A/NkOQjzuG0D/Z6UIiX1XQP350x/a3JNA/xZPfiYvozz81MriMEIjPP9KY6Wz+J88/RJzJpFTIzj/dPCiyEmnOP4RxRRY4Cs4/CpDHVcSrzT9PUbL4tk3NP8xvXooP8Mw/U99xmc2SzD9Hndi38DXMP6EYvnp42cs/qjGHemR9yz860cxStCHLPwcYV6Jnxso/fiYZC35ryj89fi0y9xDKP1r+0r/Stsk/J3xqXxBdyT9p+nS/rwPJP1uBkpGwqsg/OJqBihJSyD91cR9i1fnHPyOjaNP4occ/prV6nHxKxz8WR5Z+YPPGP1zyIT6knMY/nPGtokdGxj/5g/h2SvDFP2wd84ismsU/NWjIqW1FxT/BH+OtjfDEPy3O9WwMnMQ/1XUDwulHxD+uMWmLJfTDP+7X6Kq/oMM/iKu0BbhNwz9lKnyEDvvCPxoHehPDqMI/t16DotVWwj80PBglRgXCP0J9dZIUtME/Yy2o5UBjwT+5bqIdyxLBP7oJUj2zwsA/hb+4S/lywD8qfQZUnSPAPywia8s+qb8/HA5SKf8Lvz9LpZrye2++P4/odmG1070/5ZG9uas4vT8KdDtJX568PxUQC2jQBLw/M+LyeP9ruz8z9srp7NO6P4Zi6jOZPLo/GVud3ASmuT+roKR1MBC5P1Iov50ce7g/1u8+Acrmtz92EapaOVO3P0xKaXNrwLY/GE2FJGEutj+kZnRXG521P64r+gabDLU/EyIbQOF8tD+GmiYj7+2zP3A+2eTFX7M/ETGbz2bSsj+RDd1E00WyP32Jl74MurE/nRfy0BQvsT8llhUs7aSwP5fkMJ6XG7A/NW5sKywmrz+BUbJH1RauP2Lxrf4uCa0/LCooDz79qz9wXziQB/OqP2NVKfmQ6qk/q7VoKuDjqD8eJ693+96nP2TQmLPp26Y/1K3yPLLapT9dJxEOXdukP8vumM7y3aM/l/Q96Hzioj+8ah+fBemhPxGAli6Y8aA/xKUY14H4nz91jILbGhKePxoJzYMZMJw/+OsiTp9Smj8KwQC20XmYP4K/C/TapZY/ZLD78urWlD8TXquNOA2TPxIwYDQDSZE/Sd1yTyoVjz+sj08njaSLP3ikjQ0EQYg/4M8aQpbrhD+SL5UpkqWBPzdo7Phg4Xw/XbgM2aiedj/9sbADH4pwP2ewwUOfX2U/D/e5tgWmVD8=",
].map((text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), view = new DataView(bytes.buffer);
  return Float64Array.from({ length: 256 }, (_, k) => view.getFloat64(8 * k, true));
});
const TAIL = 3.6541528853610087963519472518, TAIL_INVERSE = 0.27366123732975827203338247596;

// PCG64 (XSL-RR, 128 bits), seeded as by numpy.random.default_rng(seed)
class Generator {
  constructor(seed) {
    const words = seedWords(seed).map(BigInt), longs = [0, 2, 4, 6].map((k) => words[k] | (words[k + 1] << 32n));
    this.increment = ((((longs[2] << 64n) | longs[3]) << 1n) | 1n) & WIDE;
    this.state = (this.increment + ((longs[0] << 64n) | longs[1])) & WIDE;
    this.advance();
  }

  advance() {
    this.state = (this.state * 0x2360ed051fc65da44385df649fccf645n + this.increment) & WIDE;
  }

  // 64 random bits
  bits() {
    this.advance();
    const value = (this.state >> 64n) ^ (this.state & LONG), turn = this.state >> 122n;
    return ((value >> turn) | (value << (64n - turn))) & LONG;
  }

  // uniform in [0, 1)
  random() {
    return Number(this.bits() >> 11n) / 9007199254740992;
  }

  normal() {
    const [limits, widths, density] = ZIGGURAT;
    for (;;) {
      const bits = this.bits(), layer = Number(bits & 0xffn), whole = Number((bits >> 9n) & 0xfffffffffffffn);
      const x = ((bits >> 8n) & 1n ? -1 : 1) * whole * widths[layer];
      if (whole < limits[layer]) return x;
      if (layer === 0) {
        for (;;) {
          const along = -TAIL_INVERSE * Math.log1p(-this.random()), above = -Math.log1p(-this.random());
          if (above + above > along * along) return Math.floor(whole / 256) % 2 ? -(TAIL + along) : TAIL + along;
        }
      }
      if ((density[layer - 1] - density[layer]) * this.random() + density[layer] < Math.exp(-0.5 * x * x)) return x;
    }
  }

  normals(count) {
    return Float64Array.from({ length: count }, () => this.normal());
  }
}

function normalizeRows(points, dim) {
  for (let k = 0; k < points.length; k += dim) {
    let square = 0;
    for (let a = 0; a < dim; a++) square += points[k + a] * points[k + a];
    const size = Math.sqrt(square);
    for (let a = 0; a < dim; a++) points[k + a] /= size;
  }
  return points;
}

// Initial points (tokens, dim) of a description, row-major; kinds as in attractor.Tokens.sample, of which the page draws five
function drawStart(start, dim) {
  if (start.kind === "points") return Float64Array.from(start.points.flat());
  const [kind, numbers] = start.kind.split(":"), given = numbers ? numbers.split(",").map(Number) : [], n = start.tokens;
  if (kind === "polygon") {
    const x = new Float64Array(n * dim);
    for (let i = 0; i < n; i++) {
      x[i * dim] = Math.cos((2 * Math.PI * i) / n);
      x[i * dim + 1] = Math.sin((2 * Math.PI * i) / n);
    }
    return x;
  }
  const generator = new Generator(start.seed || 0);
  if (kind === "clusters") {
    const parts = given[0] ?? start.clusters ?? 3, width = given[1] ?? start.spread ?? 0.25;
    const centres = normalizeRows(generator.normals(parts * dim), dim), x = generator.normals(n * dim);
    for (let k = 0; k < x.length; k++) x[k] = centres[(Math.floor(k / dim) % parts) * dim + (k % dim)] + width * x[k];
    return normalizeRows(x, dim);
  }
  const x = generator.normals(n * dim);
  if (kind === "gaussian") return x.map((value) => (start.spread ?? 1) * value);
  if (kind !== "uniform" && kind !== "hemisphere") throw new Error(`the page cannot draw the start ${start.kind}`);
  normalizeRows(x, dim);
  if (kind === "hemisphere") for (let k = dim - 1; k < x.length; k += dim) x[k] = Math.abs(x[k]);
  return x;
}

if (typeof module !== "undefined") module.exports = { ...(module.exports || {}), Generator, drawStart };
