// floor(numerator / divisor) for a numerator of N and a divisor of D bits, not 0: one bit of the
// quotient a cycle, the highest first, as dividers of HLS tools do.
module quotient #(
    parameter N = 30,
    parameter D = 15
) (
    input wire clk,
    input wire [N-1:0] numerator,
    input wire [D-1:0] divisor,
    output wire [N-1:0] out  // N cycles later
);
    // The quotient's bits come in from below where the numerator's leave.
    wire [N*(N+1)-1:0] rests;
    wire [D*(N+1)-1:0] remainders, divisors;
    assign rests[N-1:0] = numerator;
    assign remainders[D-1:0] = {D{1'b0}};
    assign divisors[D-1:0] = divisor;
    assign out = rests[N*N+:N];
    wire unused = |{remainders[D*N+:D], divisors[D*N+:D]};

    genvar i;
    generate
        for (i = 0; i < N; i = i + 1) begin : stage
            reg [N-1:0] rest;
            reg [D-1:0] remainder, held;
            wire [D:0] partial = {remainders[D*i+:D], rests[N*i+N-1]};
            wire [D+1:0] left = {1'b0, partial} - {2'b00, divisors[D*i+:D]};
            wire fits = ~left[D+1];
            wire unused_bit = left[D];
            always @(posedge clk) begin
                rest <= {rests[N*i+:N-1], fits};
                remainder <= fits ? left[D-1:0] : partial[D-1:0];
                held <= divisors[D*i+:D];
            end
            assign rests[N*(i+1)+:N] = rest;
            assign remainders[D*(i+1)+:D] = remainder;
            assign divisors[D*(i+1)+:D] = held;
        end
    endgenerate
endmodule
