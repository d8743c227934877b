// The sum of 16 signed values in 36 bits: an addition a cycle.
module sum_tree (
    input wire clk,
    input wire [32*16-1:0] values,
    output wire signed [35:0] out  // four cycles later
);
    // Node i is the sum of nodes 2 i and 2 i + 1; the values are nodes 16 to 31.
    wire [36*32-1:36] nodes;
    assign out = nodes[36+:36];

    genvar i;
    generate
        for (i = 1; i < 16; i = i + 1) begin : node
            reg [35:0] sum;
            always @(posedge clk) sum <= nodes[36*(2*i)+:36] + nodes[36*(2*i+1)+:36];
            assign nodes[36*i+:36] = sum;
        end
        for (i = 0; i < 16; i = i + 1) begin : leaf
            assign nodes[36*(16+i)+:36] = {{4{values[32*i+31]}}, values[32*i+:32]};
        end
    endgenerate
endmodule
