// DEPTH registers one after the other, for what waits beside a pipeline. DEPTH may be 0.
module delay #(
    parameter WIDTH = 32,
    parameter DEPTH = 1
) (
    input wire clk,
    input wire [WIDTH-1:0] in,
    output wire [WIDTH-1:0] out
);
    generate
        if (DEPTH == 0) begin : none
            wire unused = clk;
            assign out = in;
        end else begin : stages
            reg [WIDTH*DEPTH-1:0] words;
            always @(posedge clk) words <= (WIDTH * DEPTH)'({words, in});
            assign out = words[WIDTH*(DEPTH-1)+:WIDTH];
        end
    endgenerate
endmodule
